//! The proof that a request was admitted.

/// The parsed parameters of an admitted request, the input of a handler. Only [`admission`](super)
/// constructs one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admitted<T>(pub(super) T);

impl<T> Admitted<T> {
    /// Returns the parameters, for the handler.
    pub(crate) fn into_params(self) -> T {
        self.0
    }
}
