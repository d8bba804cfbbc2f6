use super::*;
use crate::membership::layout::{Layout, Stage, VoterId};
use crate::placement::topology::{Member, Topology};

fn token(id: u32, name: &str) -> Token {
    Token {
        id,
        name: name.to_owned(),
        hash: Token::hash_of(name.as_bytes()),
        methods: Methods::ALL,
        kinds: Kinds::DATA,
        prefix: Vec::new(),
        changed_ms: 5,
        expires_ms: 0,
        requests: 0,
        bytes: 0,
    }
}

fn names(access: &Access) -> Vec<&str> {
    access.tokens.iter().map(|token| token.name.as_str()).collect()
}

#[test]
fn tokens_are_found_and_removed_by_name_or_id() {
    let access = Access::default().with(token(9, "b"), 1).unwrap();
    let access = access.with(Token { expires_ms: 100, ..token(3, "a") }, 1).unwrap();
    assert_eq!(names(&access), ["a", "b"], "in the order of their ids");
    assert_eq!(access.with(token(4, "b"), 1), Err(AccessError::NameTaken("b".to_owned())));
    assert_eq!(access.without("00000009", 1).map(|a| a.tokens.len()), Ok(1));
    assert_eq!(names(&access.without("b", 1).unwrap()), ["a"]);
    assert_eq!(access.without("c", 1), Err(AccessError::Unknown("c".to_owned())));
    assert_eq!(names(&access.with(token(4, "c"), 100).unwrap()), ["c", "b"], "one has expired");
    assert_eq!(names(&access.with(token(4, "a"), 100).unwrap()), ["a", "b"], "its name is free");
}

#[test]
fn an_invalid_token_is_refused() {
    let with = |token: Token| Access::default().with(token, 10).map(|_| ());
    let like_id = "0bd51cd1";
    assert_eq!(with(token(1, like_id)), Err(AccessError::NameLikeId(like_id.to_owned())));
    assert_eq!(with(token(1, "0bd51cd")), Ok(()));
    for name in ["", "a b", "a\n", &"x".repeat(65)] {
        assert_eq!(with(token(1, name)), Err(AccessError::BadName), "{name:?}");
    }
    assert_eq!(with(Token { prefix: vec![1; 129], ..token(1, "a") }), Err(AccessError::LongPrefix));
    let kinds = Kinds::ADMIN.or(Kinds::DATA);
    let admin = Token { prefix: vec![1], kinds, ..token(1, "a") };
    assert_eq!(with(admin), Err(AccessError::AdminPrefix));
    assert_eq!(with(Token { expires_ms: 10, ..token(1, "a") }), Err(AccessError::Expired));
    let tokens = (0..MAX_TOKENS as u32).map(|id| token(id, &id.to_string())).collect();
    let full = Access { tokens, ..Access::default() };
    assert_eq!(full.with(token(5000, "one"), 1), Err(AccessError::Full));
}

#[test]
fn access_can_change_in_every_stage_and_stays_in_later_layouts() {
    let member = |name: &str| Member { name: name.into(), zone: String::new(), weight: 1 };
    let topology = Topology::new(vec![member("a"), member("b")], 1).unwrap();
    let first = Layout::first(&topology, |_| String::new());
    let access = first.access.with(token(1, "a"), 1).unwrap();
    let second = first.with_access(access.clone());
    assert_eq!((second.epoch, second.placement_epoch, second.base), (2, 1, first.id()));
    let change = crate::membership::layout::PlanChange {
        remove: vec!["b".to_owned()],
        ..Default::default()
    };
    let mut layout = second.plan_change(&change, |_| Some(VoterId(1))).unwrap();
    let seat = layout.council[0];
    loop {
        assert_eq!(*layout.access, access, "{:?}", layout.stage);
        assert_eq!(*layout.plan_forced_layout(seat.node, VoterId(1), &[]).unwrap().access, access);
        let more = layout.with_access(layout.access.with(token(2, "b"), 1).unwrap());
        assert_eq!((more.stage, more.placement_epoch), (layout.stage, layout.placement_epoch));
        assert_eq!((&more.nodes, &more.before), (&layout.nodes, &layout.before));
        assert_eq!(Layout::from_bytes(&more.to_bytes()).unwrap(), more);
        if let Some(aborted) = layout.plan_abort(|_| Some(VoterId(1))) {
            assert_eq!(*aborted.access, access);
        }
        match layout.next_stage() {
            Some(next) => layout = next,
            None => break,
        }
    }
    assert_eq!(layout.stage, Stage::Settled);
}
