//! Rank statistics, which show whether two small samples differ, and by how much. They assume no
//! distribution, because latencies have heavy tails, and one stalled run must not decide.
//!
//! *Test*: Mann and Whitney's U ("On a Test of Whether one of Two Random Variables is
//! Stochastically Larger than the Other", 1947), exact: if A and B are the same, each order of all
//! their figures is equally likely, and the number of orders for each U follows by a recursion over
//! the largest figure. *Effect*: the median of all differences between a figure of B and a figure
//! of A (Hodges and Lehmann, "Estimates of Location Based on Rank Tests", 1963). The interval of
//! the effect contains exactly the shifts that the test does not reject, so that test and interval
//! never contradict each other.

/// Maximum number of figures in a sample. The time of the recursion grows with the square of the
/// product of both sample sizes.
pub(super) const MAX_SAMPLE: usize = 40;

/// The shift from sample A to sample B.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shift {
    /// Probability of a difference at least as large as that of the samples, if A and B are the
    /// same.
    pub(super) p: f64,
    /// Estimate of B − A.
    pub(super) middle: f64,
    /// Confidence interval of the shift, infinite where the samples are too small for the requested
    /// confidence.
    pub(super) low: f64,
    pub(super) high: f64,
}

/// Compares two samples, of which only the first [`MAX_SAMPLE`] figures count. The interval misses
/// the true shift with a probability of at most `alpha`.
pub(super) fn shift(a: &[f64], b: &[f64], alpha: f64) -> Shift {
    let (a, b) = (&a[..a.len().min(MAX_SAMPLE)], &b[..b.len().min(MAX_SAMPLE)]);
    let mut differences: Vec<f64> =
        b.iter().flat_map(|b| a.iter().map(move |a| b - a)).filter(|d| !d.is_nan()).collect();
    differences.sort_by(f64::total_cmp);
    let pairs = differences.len();
    if pairs == 0 || pairs != a.len() * b.len() {
        return Shift { p: 1.0, middle: 0.0, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let middle = (differences[(pairs - 1) / 2] + differences[pairs / 2]) / 2.0;
    let tail = tail(a.len(), b.len());
    // Ties count for neither side, which makes the test conservative.
    let above = differences.iter().filter(|difference| **difference > 0.0).count();
    let below = differences.iter().filter(|difference| **difference < 0.0).count();
    let rarer = pairs - above.max(below);
    let p = (2.0 * tail[rarer]).min(1.0);
    // The greatest number of differences that may lie outside the interval at each end.
    let outside = tail.iter().take_while(|tail| 2.0 * **tail <= alpha).count();
    let (low, high) = if outside == 0 {
        (f64::NEG_INFINITY, f64::INFINITY)
    } else {
        (differences[outside - 1], differences[pairs - outside])
    };
    Shift { p, middle, low, high }
}

/// Returns the minimum p-value of samples of these sizes.
pub(super) fn least_p(a: usize, b: usize) -> f64 {
    if a == 0 || b == 0 { 1.0 } else { 2.0 * tail(a.min(MAX_SAMPLE), b.min(MAX_SAMPLE))[0] }
}

/// Returns, for each u from 0 to `a` · `b`, the probability of U ≤ u if A and B are the same.
fn tail(a: usize, b: usize) -> Vec<f64> {
    // counts[j][u]: among the orders of i figures of A and j of B, the share with U = u. The
    // largest figure is either one of A, which adds j to U, or one of B, which adds nothing.
    let mut counts = vec![vec![0.0; a * b + 1]; b + 1];
    for row in &mut counts {
        row[0] = 1.0;
    }
    for i in 1..=a {
        let mut next = vec![vec![0.0; a * b + 1]; b + 1];
        next[0][0] = 1.0;
        for j in 1..=b {
            let of_a = i as f64 / (i + j) as f64;
            for u in 0..=i * j {
                let from_a = if u >= j { counts[j][u - j] } else { 0.0 };
                next[j][u] = of_a * from_a + (1.0 - of_a) * next[j - 1][u];
            }
        }
        counts = next;
    }
    let mut sum = 0.0;
    let add = |share: &f64| {
        sum += share;
        sum
    };
    counts[b].iter().map(add).collect()
}

/// Returns the level of each of several tests, so that the chance of *any* false alarm among them
/// stays at `alpha` (Holm, "A Simple Sequentially Rejective Multiple Test Procedure", 1979). The
/// least p is tested at `alpha` divided by the number of tests, the next at `alpha` divided by that
/// number less one, and so on up to the first p above its level. All remaining tests have the level
/// of this first p. A test finds a difference exactly if its p is at most its level.
pub(super) fn levels(p_values: &[f64], alpha: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut levels = vec![alpha; p_values.len()];
    let mut left = p_values.len();
    for place in order {
        levels[place] = alpha / left as f64;
        if p_values[place] <= levels[place] {
            left -= 1;
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_probabilities_equal_published_tables() {
        // Of the 70 orders of four and four figures, 2 have all figures of one side first; of the
        // 924 orders of six and six, also 2.
        assert!((least_p(4, 4) - 2.0 / 70.0).abs() < 1e-12);
        assert!((least_p(6, 6) - 2.0 / 924.0).abs() < 1e-12);
        assert!((least_p(3, 5) - 2.0 / 56.0).abs() < 1e-12);
        // In Mann and Whitney's own table, n = m = 5 and U ≤ 4 has the probability 0.048.
        assert!((tail(5, 5)[4] - 0.0476).abs() < 1e-4);
        assert!((tail(7, 4).last().unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn separate_samples_shift_by_their_distance() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let b = a.map(|value| value + 10.0);
        let shift = shift(&a, &b, 0.01);
        assert!((shift.p - 2.0 / 924.0).abs() < 1e-12);
        assert_eq!(shift.middle, 10.0);
        assert!(shift.low > 0.0 && shift.low < 10.0 && shift.high > 10.0, "{shift:?}");
    }

    #[test]
    fn equal_samples_show_no_shift() {
        let same = shift(&[5.0; 6], &[5.0; 6], 0.05);
        assert_eq!((same.p, same.middle, same.low, same.high), (1.0, 0.0, 0.0, 0.0));
        let small = shift(&[1.0, 2.0], &[5.0, 6.0], 0.05);
        assert!(small.p > 0.3 && small.low.is_infinite());
        assert_eq!(shift(&[], &[1.0], 0.05).p, 1.0);
    }

    #[test]
    fn more_tests_lower_each_tests_level() {
        assert_eq!(levels(&[0.01, 0.04, 0.02], 0.06), [0.02, 0.06, 0.03]);
        // The second test finds nothing, so the third finds nothing either, although it would find
        // something alone.
        assert_eq!(levels(&[0.01, 0.04, 0.05], 0.06), [0.02, 0.03, 0.03]);
        assert_eq!(levels(&[], 0.05), [0.0; 0]);
        assert_eq!(levels(&[0.9, 0.8], 0.05), [0.025, 0.025]);
    }
}
