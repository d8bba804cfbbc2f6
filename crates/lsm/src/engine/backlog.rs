//! The backlog of flushes and compactions. A large backlog delays writes; a full one refuses them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::MAX_IMMUTABLES;
use super::tree::{TreeState, shapes};
use super::trees::Trees;
use crate::compaction::LevelTargets;

/// State of the flush and compaction backlog.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Backlog {
    /// Writes need no delay.
    Clear,
    /// Writes should slow down: 0.0 = hardly, 1.0 = nearly at the limit.
    Behind(f64),
    /// Writes must be refused for now.
    Full,
}

/// Number of level-0 tables, in multiples of the compaction trigger, at which writes slow down.
const LEVEL0_SLOW: usize = 3;
/// Number of level-0 tables, in multiples of the compaction trigger, at which writes are refused: a
/// read may have to search every level-0 table.
const LEVEL0_FULL: usize = 8;
/// Compaction debt, in multiples of level 1's target bytes, at which writes slow down.
const DEBT_SLOW: u64 = 16;
/// Compaction debt, in multiples of level 1's target bytes, at which writes are refused. Limits
/// space amplification.
const DEBT_FULL: u64 = 64;

/// The measured value at which writes are refused, in thousandths.
const BACKLOG_FULL: u64 = 1000;

/// The last measurement of the backlog.
#[derive(Default)]
pub(super) struct BacklogMeter {
    /// The backlog of the worst tree in thousandths: 0 = clear, [`BACKLOG_FULL`] = full.
    thousandths: AtomicU64,
}

impl BacklogMeter {
    /// The backlog as last measured.
    pub(super) fn read(&self) -> Backlog {
        match self.thousandths.load(Ordering::Relaxed) {
            0 => Backlog::Clear,
            BACKLOG_FULL.. => Backlog::Full,
            thousandths => Backlog::Behind(thousandths as f64 / BACKLOG_FULL as f64),
        }
    }

    /// Measures the backlog. Call it after every change of the number of memtables or tables.
    pub(super) fn measure(&self, trees: &Trees, targets: &LevelTargets) {
        let worst = trees.iter().map(|tree| tree_backlog(&tree.load(), targets));
        let worst = worst.fold(0.0, f64::max).clamp(0.0, 1.0);
        self.thousandths.store((worst * BACKLOG_FULL as f64) as u64, Ordering::Relaxed);
    }
}

/// The backlog of one tree, on a scale from 0.0 to 1.0: 0.0 or less = writes need no delay, 1.0 or
/// more = writes are refused.
fn tree_backlog(state: &TreeState, targets: &LevelTargets) -> f64 {
    let part = |value: f64, slow: f64, full: f64| (value - slow) / (full - slow);
    let trigger = targets.level0_tables;
    let debt = targets.debt(&shapes(&state.levels, |_| 0)) as f64;
    let level1 = targets.level1_bytes as f64;
    let waiting = state.immutables.len() as f64;
    let level0 = state.levels[0].len() as f64;
    part(waiting, 1.0, MAX_IMMUTABLES as f64)
        .max(part(level0, (trigger * LEVEL0_SLOW) as f64, (trigger * LEVEL0_FULL) as f64))
        .max(part(debt, level1 * DEBT_SLOW as f64, level1 * DEBT_FULL as f64))
}
