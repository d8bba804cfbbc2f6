//! The loop that moves a source's pages one after the other, and repeats each page until it is
//! moved.
//!
//! ```text
//!   page(start) ─┬─ Ok(Some(next)) ─▶ page(next) …
//!                ├─ Ok(None) ───────▶ all pages are moved
//!                └─ Err ────────────▶ pause(failures) ─┬─ Ok(micros) ─▶ page(start) after `micros`
//!                                                      └─ Err ───────▶ the source is given up
//! ```
//!
//! A transfer supplies the two functions: `page` reads, filters and stores one page, at the
//! transfer's pace if it has one (a rebuild has none), and `pause` decides how long to wait after a
//! failure, or gives up the source.

use std::convert::Infallible;

use crate::background::task::Context;
use crate::transfer::{PageFailure, RETRY_MICROS};

/// The pause of a transfer that never gives up its source.
pub(super) fn retry_forever(_failures: u32) -> Result<u64, Infallible> {
    Ok(RETRY_MICROS)
}

/// Repeats an attempt until it succeeds. After a failure, `pause` gets the number of consecutive
/// failures and returns the microseconds until the next attempt, or the error that ends the
/// attempts.
pub(super) async fn retry<T, E>(
    context: &Context,
    mut attempt: impl AsyncFnMut() -> Result<T, PageFailure>,
    mut pause: impl FnMut(u32) -> Result<u64, E>,
) -> Result<T, E> {
    let mut failures = 0;
    loop {
        if let Ok(done) = attempt().await {
            return Ok(done);
        }
        failures += 1;
        context.pause(pause(failures)?).await;
    }
}

/// Moves all pages from `start` on. `page` moves the page that begins at its argument and returns
/// the start of the next page, or `None` after the last. Returns the error of `pause`, if it gives
/// up.
pub(super) async fn move_pages<S: Clone, E>(
    context: &Context,
    start: S,
    mut page: impl AsyncFnMut(S) -> Result<Option<S>, PageFailure>,
    mut pause: impl FnMut(u32) -> Result<u64, E>,
) -> Result<(), E> {
    let mut next = Some(start);
    while let Some(start) = next {
        next = retry(context, async || page(start.clone()).await, &mut pause).await?;
    }
    Ok(())
}
