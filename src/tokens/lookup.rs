//! Token lookup and rate limiting. Indexes the tokens of the layout in force by the hash of their
//! text, and limits each token's requests per second and bytes per second.
//!
//! ```text
//!  the layout in force ─▶ index: SHA-256 ─▶ token and its rates ◀─ requests of all loops
//!                           ▲
//!                           └── rebuilt by the first caller that sees a later epoch
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use protocol::layout::{Kinds, Token, TokenHash};
use protocol::{Clock, Shared, layout};
use subtle::ConstantTimeEq;

use crate::counters::clocks::{mono_micros, now};
use crate::node::Node;
use crate::peers::proof::Proofs;
use crate::settings::config::OpenTo;
use crate::settings::secret::Secret;

/// Maximum burst after a pause, in nanoseconds of the nominal rate.
const BURST_NANOS: u64 = 1_000_000_000;

/// Tokens and the access policy of one node.
pub(crate) struct Access {
    admin: Arc<ArcSwapOption<Secret>>,
    open_to: OpenTo,
    index: ArcSwap<Index>,
    /// Locked during a rebuild of the index, so only one caller rebuilds it.
    renewing: Mutex<()>,
    /// Locked during an access change, so this node proposes one change at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Start of the node, in microseconds of the monotonic clock.
    began: u64,
    /// Page proofs of other nodes that were used already.
    pub(crate) proofs: Proofs,
}

/// The tokens of one layout.
#[derive(Default)]
struct Index {
    epoch: u64,
    access: Arc<layout::Access>,
    by_hash: HashMap<TokenHash, Arc<RatedToken>>,
}

/// A token of the layout in force, with its rates.
#[derive(Debug)]
pub(crate) struct RatedToken {
    pub(crate) token: Token,
    requests: Option<TokenRate>,
    bytes: Option<TokenRate>,
}

/// The last token that a connection sent, cached so that the next request with the same token costs
/// only one comparison.
pub(crate) struct CachedToken {
    /// The token's text.
    text: Box<[u8]>,
    epoch: u64,
    pub(crate) known: Arc<RatedToken>,
}

impl Access {
    /// Creates the access state with the configured admin token and policy, and an empty index.
    pub(crate) fn new(admin: Option<Secret>, open_to: OpenTo) -> Self {
        Self {
            admin: Arc::new(ArcSwapOption::from_pointee(admin)),
            open_to,
            index: ArcSwap::default(),
            renewing: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            began: mono_micros(),
            proofs: Proofs::default(),
        }
    }

    /// Returns the cell with the admin token. If the token's file changes, the new token is stored
    /// in the cell.
    pub(crate) fn admin_token(&self) -> Arc<ArcSwapOption<Secret>> {
        Arc::clone(&self.admin)
    }

    /// True if a request of `kind` needs a token. `is_local` is true if the request comes from
    /// loopback.
    pub(crate) fn is_needed(&self, kind: Kinds, is_local: bool) -> bool {
        match self.open_to {
            OpenTo::Nobody => true,
            _ if kind == Kinds::ADMIN => self.admin.load().is_some() || !is_local,
            OpenTo::Loopback => !is_local,
            OpenTo::All => false,
        }
    }

    /// True if `given` is the admin token. The comparison takes constant time, so timing does not
    /// reveal a matching prefix.
    pub(crate) fn is_admin(&self, given: &[u8]) -> bool {
        self.admin.load().as_ref().is_some_and(|token| given.ct_eq(token.bytes()).into())
    }

    /// Looks up the token with the text `given` in the layout in force; `None` if it is unknown.
    /// `before` is the connection's cached token. A removed node finds no token, because it no
    /// longer learns about revoked tokens.
    pub(crate) fn find(
        &self,
        shared: &Shared,
        given: &[u8],
        before: Option<&CachedToken>,
    ) -> Option<TokenLookup> {
        let epoch = shared.membership.views.epoch();
        if let Some(before) = before
            && before.epoch == epoch
            && is_same(&before.text, given)
        {
            return Some(TokenLookup::CachedToken);
        }
        if shared.is_removed() {
            return None;
        }
        self.rebuild_index(shared, epoch);
        let index = self.index.load();
        let known = Arc::clone(index.by_hash.get(&Token::hash_of(given))?);
        Some(TokenLookup::New(CachedToken { text: given.into(), epoch: index.epoch, known }))
    }

    /// True if a cached token is still in the layout in force, and the node was not removed from
    /// the cluster. With an unchanged layout, the check costs one comparison of epochs.
    pub(crate) fn holds(&self, shared: &Shared, token: &CachedToken) -> bool {
        let epoch = shared.membership.views.epoch();
        if token.epoch == epoch {
            return true;
        }
        if shared.is_removed() {
            return false;
        }
        self.rebuild_index(shared, epoch);
        self.index.load().by_hash.contains_key(&token.known.token.hash)
    }

    /// Returns all tokens of the layout in force.
    pub(crate) fn all(&self, shared: &Shared) -> Arc<layout::Access> {
        self.rebuild_index(shared, shared.membership.views.epoch());
        Arc::clone(&self.index.load().access)
    }

    /// Rebuilds the index if the layout has changed. An unchanged token keeps the state of its
    /// rates.
    fn rebuild_index(&self, shared: &Shared, epoch: u64) {
        if self.index.load().epoch >= epoch {
            return;
        }
        let _alone = self.renewing.lock();
        let before = self.index.load_full();
        let layout = shared.membership.layouts.active_layout();
        if before.epoch >= layout.epoch {
            return;
        }
        let known = |token: &Token| {
            let known = before.by_hash.get(&token.hash).filter(|known| known.token == *token);
            (token.hash, known.map_or_else(|| Arc::new(RatedToken::new(token.clone())), Arc::clone))
        };
        let by_hash = layout.access.tokens.iter().map(known).collect();
        let (epoch, access) = (layout.epoch, Arc::clone(&layout.access));
        self.index.store(Arc::new(Index { epoch, access, by_hash }));
    }
}

/// Returns the time that decides whether a token has expired, in milliseconds since 1970: the
/// latest time that the node knows. So an expired token stays expired if the wall clock is set
/// back.
pub(crate) fn now_ms(node: &Node) -> u64 {
    let (now, skew) = (now(), node.config.max_clock_skew.as_micros() as u64);
    let up = now.mono.saturating_sub(node.access.began);
    node.shared.clock.latest(up, now, skew) / 1000
}

/// Returns the creation time of a new token, in milliseconds since 1970. The token's lifetime
/// begins at this time. The time is [`now_ms`], but not later than most other nodes accept. So a
/// node whose clock is ahead neither lengthens a token's lifetime, nor removes a token that is
/// valid on other nodes.
pub(crate) fn creation_time_ms(node: &Node) -> u64 {
    node.shared.clock.cap_to_accepted(now_ms(node) * 1000, now()) / 1000
}

/// True if the token has expired. Then the node merges the token's expiry into its clock. The clock
/// is durable and never goes back, so a refused token stays refused after a restart.
pub(crate) fn has_expired(node: &Node, token: &Token) -> bool {
    let has_expired = token.expires_ms != 0 && token.has_expired(now_ms(node));
    if has_expired {
        merge_expiry(node, token.expires_ms);
    }
    has_expired
}

/// Merges the latest expiry of the expired tokens into the node's clock, before the clock stops. A
/// clean stop stores only the last time that the clock issued or merged. On an idle node this may
/// be long ago.
pub(crate) fn keep_expired(node: &Node) {
    let (access, now_ms) = (node.access.all(&node.shared), now_ms(node));
    let expired = access.tokens.iter().filter(|token| token.has_expired(now_ms));
    if let Some(last) = expired.map(|token| token.expires_ms).max() {
        merge_expiry(node, last);
    }
}

fn merge_expiry(node: &Node, expires_ms: u64) {
    // Other nodes refuse versions that are too far ahead of their clocks. A single node has no
    // other nodes.
    let skew = match node.shared.is_alone() {
        true => u64::MAX,
        false => node.config.max_clock_skew.as_micros() as u64,
    };
    node.shared.clock.merge(Clock::time_of(expires_ms * 1000), now(), skew);
}

impl fmt::Debug for CachedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedToken({})", self.known.token.id_text())
    }
}

/// True if two texts are equal. For texts of the same length the comparison takes constant time,
/// because it combines all differences before it decides. Words of eight bytes are compared,
/// because every request with a token needs a comparison.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let (ones, end) = one.as_chunks::<8>();
    let (others, other_end) = other.as_chunks::<8>();
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let differs = ones.iter().zip(others).fold(0, |all, (a, b)| all | (word(a) ^ word(b)));
    one.len() == other.len() && bool::from(differs.ct_eq(&0) & end.ct_eq(other_end))
}

/// The result of a token lookup.
pub(crate) enum TokenLookup {
    /// The token is the connection's cached token.
    CachedToken,
    /// The token was found in the index. The connection caches it.
    New(CachedToken),
}

impl RatedToken {
    fn new(token: Token) -> Self {
        let (requests, bytes) = (TokenRate::new(token.requests), TokenRate::new(token.bytes));
        Self { token, requests, bytes }
    }

    /// True if the token limits bytes per second.
    pub(crate) fn counts_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// Admits one request at `now`, in nanoseconds since a fixed origin. The error is the time
    /// until a request is admitted, in nanoseconds. Bytes are charged after their transfer, so a
    /// token may exceed its byte rate. Then its next requests wait.
    pub(crate) fn admit(&self, now: u64) -> Result<(), u64> {
        if let Some(bytes) = &self.bytes {
            bytes.take(now, 0)?;
        }
        self.requests.as_ref().map_or(Ok(()), |requests| requests.take(now, 1))
    }

    /// Charges `bytes`, received or sent, to the token's byte rate. `now` is as for
    /// [`Self::admit`].
    pub(crate) fn charge(&self, now: u64, bytes: u64) {
        if let Some(pace) = &self.bytes {
            pace.charge(now, bytes);
        }
    }
}

/// A rate limiter with the generic cell rate algorithm (ITU-T I.371). `until` is the time at which
/// the usage so far would end at the nominal rate, in nanoseconds since a fixed origin.
#[derive(Debug)]
struct TokenRate {
    /// Number of requests or bytes per second.
    rate: u64,
    until: AtomicU64,
}

impl TokenRate {
    /// Creates a limiter; `None` for rate 0, which means unlimited.
    fn new(rate: u64) -> Option<Self> {
        (rate > 0).then(|| Self { rate, until: AtomicU64::new(0) })
    }

    fn nanos(&self, units: u64) -> u64 {
        u64::try_from(u128::from(units) * 1_000_000_000 / u128::from(self.rate)).unwrap_or(u64::MAX)
    }

    fn take(&self, now: u64, units: u64) -> Result<(), u64> {
        let most = now.saturating_add(BURST_NANOS);
        let after = |until: u64| until.max(now).saturating_add(self.nanos(units));
        let taken = self.until.try_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
            Some(after(until)).filter(|after| *after <= most)
        });
        taken.map(drop).map_err(|until| after(until) - most)
    }

    fn charge(&self, now: u64, units: u64) {
        let after = |until: u64| until.max(now).saturating_add(self.nanos(units));
        self.until.update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::secret::ADMIN;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_rate_permits_a_burst_of_one_second() {
        let pace = TokenRate::new(10).unwrap();
        let taken = |now| (0..1000).take_while(|_| pace.take(now, 1).is_ok()).count();
        assert_eq!(taken(5 * SECOND), 10);
        assert_eq!(pace.take(5 * SECOND, 1), Err(SECOND / 10));
        assert_eq!(taken(5 * SECOND + SECOND / 2), 5);
        assert_eq!(taken(100 * SECOND), 10, "no more after a longer pause");
        let ten_seconds =
            (0..10_000).filter(|n| pace.take(200 * SECOND + n * 1_000_000, 1).is_ok());
        assert_eq!(ten_seconds.count(), 10 + 99);
        assert!(TokenRate::new(0).is_none());
        let slowest = TokenRate::new(1).unwrap();
        assert_eq!([slowest.take(0, 1), slowest.take(0, 1)], [Ok(()), Err(SECOND)]);
    }

    #[test]
    fn the_byte_rate_is_charged_afterwards_and_delays_the_next_request() {
        let pace = TokenRate::new(1 << 20).unwrap();
        assert_eq!(pace.take(0, 0), Ok(()));
        pace.charge(0, 3 << 20);
        assert_eq!(pace.take(0, 0), Err(2 * SECOND));
        assert_eq!(pace.take(2 * SECOND, 0), Ok(()));
        pace.charge(0, u64::MAX);
        assert!(pace.take(SECOND, 0).is_err());
    }

    #[test]
    fn texts_are_compared_in_full() {
        for len in 0..40 {
            let text = vec![7; len];
            assert!(is_same(&text, &text) && !is_same(&text, &[&text[..], &[7]].concat()));
            for at in 0..len {
                let mut other = text.clone();
                other[at] ^= 1;
                assert!(!is_same(&text, &other), "{at} of {len}");
            }
        }
    }

    #[test]
    fn a_token_is_needed_as_the_settings_say() {
        let secret = || ADMIN.load(None, Some("sixteen letters.".into())).unwrap().0;
        let needs = |access: Access| {
            [Kinds::DATA, Kinds::METRICS, Kinds::ADMIN]
                .map(|kind| [true, false].map(|is_local| access.is_needed(kind, is_local)))
        };
        let (far, all, none) = ([false, true], [true, true], [false, false]);
        assert_eq!(needs(Access::new(None, OpenTo::Loopback)), [far, far, far]);
        assert_eq!(needs(Access::new(secret(), OpenTo::Loopback)), [far, far, all]);
        assert_eq!(needs(Access::new(None, OpenTo::All)), [none, none, far]);
        assert_eq!(needs(Access::new(secret(), OpenTo::All)), [none, none, all]);
        assert_eq!(needs(Access::new(None, OpenTo::Nobody)), [all, all, all]);
    }
}
