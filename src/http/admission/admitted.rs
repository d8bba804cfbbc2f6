//! The proof that a request was admitted.

/// The parsed parameters of a request that was admitted: what a handler is given. Only
/// [`admission`](super) makes one.
#[derive(Debug, Clone, Copy)]
pub(in crate::http) struct Admitted<T>(pub(super) T);

impl<T> Admitted<T> {
    /// Parameters, for the handler that was given them.
    pub(in crate::http) fn into_params(self) -> T {
        self.0
    }
}
