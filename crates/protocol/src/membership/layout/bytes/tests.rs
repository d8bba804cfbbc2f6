use proptest::prelude::*;

use super::*;
use crate::membership::layout::{Joiner, Kinds, Methods, PlanChange, Quota, Token};
use crate::placement::topology::Topology;

fn layouts() -> [Layout; 2] {
    let member =
        |name: &str, zone: &str| Member { name: name.to_owned(), zone: zone.to_owned(), weight: 2 };
    let members = vec![member("a", "x"), member("b", ""), member("c", "z")];
    let topology = Topology::new(members, 2).unwrap();
    let first = Layout::first(&topology, |id| format!("http://{}", id.0));
    let joiner =
        Joiner { member: member("d", "x"), url: "http://d".to_owned(), disk: Some(Incarnation(9)) };
    let change = PlanChange {
        add: vec![joiner],
        remove_lost: vec!["b".to_owned()],
        replicas: Some(3),
        ..PlanChange::default()
    };
    let moving = first.plan_change(&change, |_| Some(VoterId(9))).unwrap();
    [first, moving]
}

/// Returns a layout in a transition, with forced layouts and tokens.
fn with_tokens() -> Layout {
    let [first, moving] = layouts();
    let mut layout = moving.next_stage().unwrap();
    let access = layout.access.with(token("ci"), 1).unwrap();
    let access = access.with(Token { id: 1, ..token("backup") }, 1).unwrap();
    layout.epoch = 1_000_001;
    layout.decrees = vec![Decree { base: first.epoch, epoch: 1_000_000, number: 5 }];
    layout.with_access(access)
}

fn first_layout() -> Layout {
    layouts().into_iter().next().unwrap()
}

fn with_quotas(layout: &Layout) -> Layout {
    let quota = |prefix: &[u8], soft, hard| Quota { prefix: prefix.to_vec(), soft, hard };
    let access = layout.access.with_quota(quota(b"users/\xff", 0, 1 << 40)).unwrap();
    layout.with_access(access.with_quota(quota(b"", 5, 0)).unwrap())
}

fn token(name: &str) -> Token {
    Token {
        id: 7,
        name: name.to_owned(),
        hash: Token::hash_of(name.as_bytes()),
        methods: Methods::GET.or(Methods::PUT),
        kinds: Kinds::DATA,
        prefix: b"users/\xff".to_vec(),
        changed_ms: 1,
        expires_ms: 9,
        requests: 10,
        bytes: 1 << 20,
    }
}

#[test]
fn a_layout_is_decoded_as_it_was_encoded() {
    let [first, moving] = layouts();
    for layout in
        [first, moving, with_tokens(), with_quotas(&first_layout()), with_quotas(&with_tokens())]
    {
        let bytes = layout.to_bytes();
        assert_eq!(Layout::from_bytes(&bytes), Ok(layout.clone()));
        for cut in 0..bytes.len() {
            assert!(Layout::from_bytes(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Layout::from_bytes(&longer), Err("it goes on behind its end"));
    }
    assert!(Layout::from_bytes(&vec![0; MAX_BYTES + 1]).is_err());
}

/// Pins the encoding that nodes of other releases write and read. A change of the encoding needs a
/// new `FORMAT_VERSION`.
#[test]
fn the_encoding_is_pinned() {
    let [first, moving] = layouts();
    assert_eq!(first.to_bytes().len(), 163);
    let hash = |layout: &Layout| xxhash_rust::xxh3::xxh3_64(&layout.to_bytes());
    assert_eq!(
        (hash(&first), hash(&moving)),
        (12_008_984_973_039_873_538, 6_613_780_372_236_939_896)
    );
    assert_eq!(hash(&with_tokens()), 18_225_584_155_533_429_824);
    assert_eq!(hash(&with_quotas(&with_tokens())), 1_741_614_628_239_414_236);
}

#[test]
fn inconsistent_layouts_are_refused() {
    let [first, moving] = layouts();
    let refused = |change: &dyn Fn(&mut Layout)| {
        let mut layout = moving.clone();
        change(&mut layout);
        assert!(Layout::from_bytes(&layout.to_bytes()).is_err(), "{layout:?}");
    };
    refused(&|layout| layout.council.clear());
    refused(&|layout| layout.council = vec![layout.council[0]; 9]);
    refused(&|layout| layout.council[0].node = NodeId(77));
    refused(&|layout| layout.council.push(layout.council[0]));
    refused(&|layout| layout.nodes.clear());
    refused(&|layout| layout.nodes.swap(0, 1));
    refused(&|layout| layout.nodes[1].id = layout.nodes[0].id);
    refused(&|layout| layout.next_id = 1);
    refused(&|layout| layout.placement_epoch = 9);
    refused(&|layout| layout.before = None);
    refused(&|layout| layout.stage = Stage::Settled);
    let settled_with_more = Layout { stage: Stage::ReadNew, ..first };
    assert!(Layout::from_bytes(&settled_with_more.to_bytes()).is_err());
    let refused = |change: &dyn Fn(&mut Access)| {
        let mut layout = with_tokens();
        let mut access = Access::clone(&layout.access);
        change(&mut access);
        layout.access = Arc::new(access);
        assert!(Layout::from_bytes(&layout.to_bytes()).is_err(), "{layout:?}");
    };
    refused(&|access| access.tokens.swap(0, 1));
    refused(&|access| access.tokens[0].id = 7);
    refused(&|access| access.tokens[0].name = "ci".to_owned());
    refused(&|access| access.tokens[0].name = "c i".to_owned());
    refused(&|access| access.tokens[0].name.clear());
    refused(&|access| access.tokens[0].prefix = vec![0; 129]);
    refused(&|access| access.tokens[0].kinds = Kinds::ALL);
    let refused = |change: &dyn Fn(&mut Access)| {
        let mut layout = with_quotas(&with_tokens());
        let mut access = Access::clone(&layout.access);
        change(&mut access);
        layout.access = Arc::new(access);
        assert!(Layout::from_bytes(&layout.to_bytes()).is_err(), "{layout:?}");
    };
    refused(&|access| access.quotas.swap(0, 1));
    refused(&|access| access.quotas[1].prefix.clear());
    refused(&|access| access.quotas[1].prefix = vec![0; 129]);
    refused(&|access| access.quotas[0].soft = 0);
    refused(&|access| access.quotas[1].soft = 2 << 40);
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(
        of in 0_usize..3, at in 0_usize..700, byte: u8, cut in 0_usize..1000,
    ) {
        let mut bytes = layouts_once()[of].to_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut.max(1));
        if let Ok(layout) = Layout::from_bytes(&bytes) {
            prop_assert_eq!(layout.to_bytes(), bytes, "there is one way to write it");
        }
    }
}

fn layouts_once() -> &'static [Layout; 3] {
    static MADE: std::sync::OnceLock<[Layout; 3]> = std::sync::OnceLock::new();
    MADE.get_or_init(|| {
        [layouts().into_iter().last().unwrap(), with_tokens(), with_quotas(&with_tokens())]
    })
}
