//! Response bodies.

mod events;
mod items;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};

pub(super) use events::Events;
pub(super) use items::{Broken, Items, Page};

/// A piece as it is sent: for an item of a range what comes before the value, then the value, which
/// is not copied.
pub(super) type Item = Chain<Bytes, Bytes>;

/// What is sent after a response's head.
#[derive(Debug)]
pub(crate) enum Body {
    /// There is no body.
    Empty,
    /// All there is.
    Whole(Bytes),
    /// The items of a range.
    Items(Box<Items>),
    /// What the dashboard shows.
    Events(Box<Events>),
}

impl hyper::body::Body for Body {
    type Data = Item;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Item>, Broken>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes.chain(Bytes::new())))))
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
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Items(_) | Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Items(_) | Self::Events(_) => SizeHint::default(),
        }
    }
}
