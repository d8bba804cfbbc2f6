//! A key as a register, for the models of one key.

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// A client's operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Put(u8),
    Delete,
    /// Appends this id to the value atomically, and returns the value.
    Append(u8),
    Get,
}

/// The key's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Register(Vec<u8>);

/// The history of the clients' operations and answers.
pub(crate) type History = LinearizabilityTester<u8, Register>;

impl SequentialSpec for Register {
    type Op = Op;
    type Ret = Option<Vec<u8>>;

    fn invoke(&mut self, op: &Op) -> Self::Ret {
        match op {
            Op::Put(value) => self.0 = vec![*value],
            Op::Delete => self.0.clear(),
            Op::Append(id) => self.0.push(*id),
            Op::Get => {}
        }
        matches!(op, Op::Append(_) | Op::Get).then(|| self.0.clone())
    }
}

/// Makes a history of the answered operations `done`, in this order, and the unanswered operations
/// `begun`.
pub(crate) fn history(done: &[Op], begun: &[Op]) -> History {
    let mut register = Register(Vec::new());
    let mut history = History::new(register.clone());
    for (n, op) in (100..).zip(done) {
        history.on_invoke(n, op.clone()).expect("one each");
        history.on_return(n, register.invoke(op)).expect("one each");
    }
    for (n, op) in (200..).zip(begun) {
        history.on_invoke(n, op.clone()).expect("one each");
    }
    history
}

/// Returns the value as it was just after the append of this id.
pub(crate) fn up_to(value: &[u8], id: u8) -> Vec<u8> {
    let end = value.iter().position(|v| *v == id).map_or(value.len(), |at| at + 1);
    value[..end].to_vec()
}
