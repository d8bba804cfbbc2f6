//! `kvorum scan` into a pipe whose reader pauses: the command receives a whole page before it
//! prints the page, so that the node never waits for the reader.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;

use socket2::SockRef;

use super::{FRAMES, list};
use crate::process::{Node, kvorum};

/// Number of items: more than the first page has.
const ITEMS: usize = 160;

/// Bytes of a value, so that a page is far longer than the buffers of a pipe and of the sockets.
const VALUE: usize = 16 << 10;

/// Bytes of the server's send buffer; the kernel doubles this number.
const SEND_BUFFER: usize = 4 << 10;

#[test]
fn a_page_is_taken_from_the_node_before_the_output_is_read() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for number in 0..ITEMS {
        let target = format!("/v0/entity?id=key{number:04}");
        assert_eq!(client.put(&target, &[b'v'; VALUE]).status, 201);
    }
    // A server that answers the scan with the node's responses.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut command = kvorum();
    command.args(["scan", "--url", &url]).stdin(Stdio::null());
    let mut scan = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER).unwrap();
    let (mut printed, mut reader) = (scan.stdout.take(), None);
    loop {
        let mut request = [0; 4096];
        let len = stream.read(&mut request).unwrap();
        let request = String::from_utf8_lossy(&request[..len]).into_owned();
        let Some(target) = request.split(' ').nth(1) else { break };
        let (_, query) = target.split_once('?').unwrap();
        assert!(query.contains("limit="), "{query}");
        let body = list(&mut client, query, FRAMES).body();
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {FRAMES}\r\nContent-Length: {length}");
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
        // The write completes although nobody reads the output before the first page is sent.
        stream.write_all(&body).unwrap();
        if let Some(mut printed) = printed.take() {
            reader = Some(thread::spawn(move || {
                let mut text = String::new();
                printed.read_to_string(&mut text).unwrap();
                text
            }));
        }
    }
    let text = reader.unwrap().join().unwrap();
    let output = scan.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().count(), ITEMS);
}
