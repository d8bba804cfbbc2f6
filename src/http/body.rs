//! Response bodies.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};

use super::entities::{Broken, Item, Stream};
use crate::budget::Held;

/// What is sent after a response's head.
#[derive(Debug)]
pub(crate) enum Body {
    /// Nothing.
    Empty,
    /// All there is.
    Whole(Bytes),
    /// The items of a range.
    Stream(Box<Stream>),
}

/// A large value, with the memory that is set aside for it until its last byte is sent.
struct Large {
    value: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

impl Body {
    /// A value that does not fit its connection's share of memory.
    pub(super) fn large(value: Bytes, held: Held) -> Self {
        Self::Whole(Bytes::from_owner(Large { value, _held: held }))
    }
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
            Self::Stream(stream) => stream.poll_item(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
