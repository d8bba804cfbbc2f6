//! Random numbers by Zipf's law: the i-th most popular number has a probability proportional to 1 /
//! i^theta.
//!
//! The method is that of J. Gray et al., "Quickly Generating Billion-Record Synthetic Databases",
//! SIGMOD 1994, section 3.2, with the constant that YCSB uses (B. Cooper et al., "Benchmarking
//! Cloud Serving Systems with YCSB", SoCC 2010).

/// The skew theta. With 0.99, the most popular of a million keys gets about 7 % of all requests.
const THETA: f64 = 0.99;

/// Terms of the zeta sum that are added one by one. An integral approximates the other terms, with
/// an error of less than 1e-9 of the sum.
const EXACT_TERMS: u64 = 100_000;

/// Generator of random ranks. Rank 0 is the most popular.
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    pub(crate) fn new(count: u64) -> Self {
        let zeta = zeta(count);
        let alpha = 1.0 / (1.0 - THETA);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta_exact(2) / zeta);
        Self { count, zeta, alpha, eta }
    }

    pub(crate) fn rank(&self, random: &mut fastrand::Rng) -> u64 {
        let u = random.f64();
        let part = u * self.zeta;
        let rank = if part < 1.0 {
            0
        } else if part < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            (self.count as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        };
        rank.min(self.count - 1)
    }
}

fn zeta_exact(count: u64) -> f64 {
    (1..=count).map(|i| (i as f64).powf(-THETA)).sum()
}

fn zeta(count: u64) -> f64 {
    if count <= EXACT_TERMS {
        return zeta_exact(count);
    }
    // Euler–Maclaurin: the integral, and half of the first and the last term.
    let (from, to) = (EXACT_TERMS as f64, count as f64);
    let integral = (to.powf(1.0 - THETA) - from.powf(1.0 - THETA)) / (1.0 - THETA);
    zeta_exact(EXACT_TERMS) + integral + (to.powf(-THETA) - from.powf(-THETA)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_frequencies_follow_the_law() {
        let count = 10_000;
        let zipf = Zipf::new(count);
        let mut random = fastrand::Rng::with_seed(7);
        let mut seen = vec![0_u32; count as usize];
        let draws = 200_000;
        for _ in 0..draws {
            seen[zipf.rank(&mut random) as usize] += 1;
        }
        for rank in [0, 1] {
            let share = f64::from(seen[rank]) / f64::from(draws);
            let law = ((rank + 1) as f64).powf(-THETA) / zeta_exact(count);
            assert!((share - law).abs() < 0.01, "rank {rank}: {share}, by law {law}");
        }
        // Beyond the first two ranks, the method is an approximation, which is accurate for sums.
        let share = |ranks: usize| {
            seen[..ranks].iter().map(|&n| f64::from(n)).sum::<f64>() / f64::from(draws)
        };
        for ranks in [10, 100, 1000] {
            let law = zeta_exact(ranks as u64) / zeta_exact(count);
            assert!((share(ranks) - law).abs() < 0.03, "{ranks}: {} {law}", share(ranks));
        }
    }

    #[test]
    fn the_zeta_approximation_is_accurate() {
        for count in [EXACT_TERMS + 1, 10 * EXACT_TERMS] {
            assert!((zeta(count) / zeta_exact(count) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn ranks_stay_below_the_number_of_keys() {
        let mut random = fastrand::Rng::with_seed(1);
        for count in [1, 2, 3] {
            let zipf = Zipf::new(count);
            assert!((0..1000).all(|_| zipf.rank(&mut random) < count));
        }
    }
}
