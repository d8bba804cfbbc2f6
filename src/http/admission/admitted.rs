//! A type whose values prove that a request was admitted.

/// The parsed parameters of an admitted request, the input of a handler. Only the module
/// [`admission`](super) constructs this type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admitted<T>(pub(super) T);

impl<T> Admitted<T> {
    /// Unwraps the parameters for the handler.
    pub(crate) fn into_params(self) -> T {
        self.0
    }
}
