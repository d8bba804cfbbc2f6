//! Response bodies.

mod events;
mod items;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};
use protocol::Record;

pub(super) use events::Events;
pub(super) use items::{Items, Page, RangeInterrupted};

/// A chunk of a body: encoded bytes, then content that is not copied, such as an item's value.
pub(super) type Item = Chain<Bytes, Content>;

/// Bytes to send. A value is a slice of its record's bytes, so it is not copied.
#[derive(Debug, Default)]
pub(crate) struct Content {
    bytes: Bytes,
    /// Number of bytes at the end that are not sent.
    suffix_len: usize,
}

impl Content {
    /// Returns the value of a record.
    pub(super) fn of(record: Record) -> Self {
        let (mut bytes, value) = record.into_bytes();
        let suffix_len = bytes.len() - value.end;
        bytes.advance(value.start);
        Self { bytes, suffix_len }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.suffix_len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, suffix_len: 0 }
    }
}

impl Buf for Content {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    fn advance(&mut self, sent: usize) {
        assert!(sent <= self.len(), "no more is sent than there is");
        self.bytes.advance(sent);
    }
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Body {
    /// The response has no body.
    Empty,
    /// A body of known length, in one piece.
    Whole(Content),
    /// The items of a range.
    Items(Box<Items>),
    /// The event stream of the dashboard.
    Events(Box<Events>),
}

impl hyper::body::Body for Body {
    type Data = Item;
    type Error = RangeInterrupted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Item>, RangeInterrupted>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Whole(content) => {
                let content = std::mem::take(content);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(Bytes::new().chain(content)))))
            }
            Self::Items(items) => items.poll_item(cx).map_ok(Frame::data),
            Self::Events(events) => {
                events.poll_event(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(content) => content.is_empty(),
            Self::Items(_) | Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(content) => SizeHint::with_exact(content.len() as u64),
            Self::Items(_) | Self::Events(_) => SizeHint::default(),
        }
    }
}
