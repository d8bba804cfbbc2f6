use super::*;

/// It does not know that filter: its answer shows that it is there, and that it can't tell.
#[test]
fn an_older_node_is_asked_for_a_sign_of_life_in_place_of_what_it_remembers() {
    let filter = Filter::Remembered { node: NodeId(7) };
    let page = PageRequest { start: Bytes::new(), end: None, filter, max_bytes: 9 };
    let asks = |request| {
        let body = Body::Request { remaining_ms: 500, class: Class::Stream, request };
        Message { id: 9, body }
    };
    let page = Request::Page(page);
    for (version, expected) in [(8, &Request::Ping), (10, &Request::Ping), (11, &page)] {
        let mut message = asks(page.clone());
        assert!(message.suit(version));
        assert_eq!(message, asks(expected.clone()), "{version}");
    }
}
