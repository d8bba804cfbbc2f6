//! Access tokens, which decide the requests that a client may make. A layout carries tokens and
//! quotas (`quota.rs`). The metadata quorum therefore decides each change of them, and every node
//! has them on its disk while the quorum is down.
//!
//! ```text
//!   "kvorum_…" ─ SHA-256 ─▶ hash ─▶ token: methods, kinds of requests, key prefix, expiry
//! ```
//!
//! Encoding of a token, each field with its length in bytes: id 4 │ hash 32 │ methods 1 │ kinds 1 │
//! changed 8 │ expires 8 │ requests per second 8 │ bytes per second 8 │ name 1 + n │ prefix 1 + n.
//! Tokens are encoded in the order of their ids.

use bytes::Buf;
use sha2::{Digest, Sha256};

use super::Layout;
use super::quota::{MAX_QUOTA_PREFIX, MAX_QUOTAS, Quota};

/// Number of hex digits in the text form of a token's id.
const ID_DIGITS: usize = 8;

/// Maximum number of tokens: with the longest names and prefixes they take about 256 KiB, which
/// every node stores and every transfer of a layout carries.
pub const MAX_TOKENS: usize = 1024;

/// Maximum length of a token's name in bytes.
pub const MAX_TOKEN_NAME: usize = 64;

/// Maximum length of a token's key prefix in bytes.
pub const MAX_TOKEN_PREFIX: usize = 128;

/// SHA-256 of a token's text; the text itself is not stored.
pub type TokenHash = [u8; 32];

/// Defines a bit set.
macro_rules! bits {
    ($(#[$doc:meta])* $name:ident { $($(#[$one:meta])* $bit:ident = $value:literal),* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name(u8);

        impl $name {
            $($(#[$one])* pub const $bit: Self = Self($value);)*
            /// The set of all bits.
            pub const ALL: Self = Self($($value |)* 0);

            /// Converts a bit mask; `None` if it is empty or has an undefined bit.
            fn of(bits: u8) -> Option<Self> {
                (bits != 0 && bits & !Self::ALL.0 == 0).then_some(Self(bits))
            }

            /// Returns the union of two sets.
            #[must_use]
            pub const fn or(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// True if this set contains every element of `other`.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }
    };
}

bits! {
    /// A set of HTTP methods.
    Methods {
        /// `GET` and `HEAD` requests.
        GET = 1,
        /// `PUT` requests only.
        PUT = 2,
        /// `DELETE` requests only.
        DELETE = 4,
        /// `POST` requests only.
        POST = 8
    }
}

bits! {
    /// A set of request kinds.
    Kinds {
        /// Keys and values.
        DATA = 1,
        /// A node's metrics and status.
        METRICS = 2,
        /// Administration of nodes and of the cluster.
        ADMIN = 4
    }
}

/// An access token, as nodes store it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Random id, different from the id of an earlier token with the same name.
    pub id: u32,
    /// The token's name, unique among the tokens.
    pub name: String,
    /// SHA-256 of the token's text.
    pub hash: TokenHash,
    /// The methods that the token allows.
    pub methods: Methods,
    /// The request kinds that the token allows.
    pub kinds: Kinds,
    /// The prefix of the keys that the token allows; empty = all keys.
    pub prefix: Vec<u8>,
    /// Creation time in milliseconds since 1970.
    pub changed_ms: u64,
    /// Expiry time in milliseconds since 1970; 0 = never.
    pub expires_ms: u64,
    /// Maximum requests per second that a node answers; 0 = unlimited.
    pub requests: u64,
    /// Maximum bytes per second of request and response bodies; 0 = unlimited.
    pub bytes: u64,
}

/// An error in changing tokens or quotas. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Another token has this name.
    #[error("there is a token {0:?} already: revoke it first, or give the new one another name")]
    NameTaken(String),
    /// The name is empty, too long or not printable.
    #[error("a token's name is 1 to {MAX_TOKEN_NAME} bytes of visible characters")]
    BadName,
    /// The name looks like an id: revoking by id could revoke the wrong token.
    #[error("{0:?} looks like the id of a token: give the token another name")]
    NameLikeId(String),
    /// The token's prefix is too long.
    #[error("a token's prefix has {MAX_TOKEN_PREFIX} bytes at most")]
    LongPrefix,
    /// An admin token with a prefix: an administrator can grant itself any right.
    #[error(
        "a token for admin can't be limited to a prefix: who has it can make tokens for all keys"
    )]
    AdminPrefix,
    /// The token would have expired already.
    #[error("the token would have expired already")]
    Expired,
    /// The number of tokens is at its maximum.
    #[error("there are {MAX_TOKENS} tokens, and can't be more: revoke some")]
    Full,
    /// No token has this id or name.
    #[error("there is no token of the id or name {0:?}: kvorum token list")]
    Unknown(String),
    /// The quota's prefix is too long.
    #[error("a quota's prefix has {MAX_QUOTA_PREFIX} bytes at most")]
    LongQuotaPrefix,
    /// The quota has neither limit, so it would have no effect.
    #[error("a quota needs a soft limit or a hard one, of 1 byte or more")]
    NoLimit,
    /// The soft limit is above the hard limit: the warning would come after writes are refused.
    #[error("the soft limit, {soft} bytes, is above the hard one, {hard} bytes")]
    SoftAboveHard {
        /// The soft limit as given, in bytes.
        soft: u64,
        /// The hard limit as given, in bytes.
        hard: u64,
    },
    /// The number of quotas is at its maximum.
    #[error("there are {MAX_QUOTAS} quotas, and can't be more: remove some")]
    FullOfQuotas,
    /// No quota has this prefix.
    #[error("there is no quota of the prefix \"{0}\": kvorum quota list")]
    UnknownQuota(String),
}

/// The tokens and quotas of a layout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The tokens, sorted by id.
    pub tokens: Vec<Token>,
    /// The storage quotas, sorted by prefix.
    pub quotas: Vec<Quota>,
}

impl Token {
    /// Returns the hash of a token's text.
    pub fn hash_of(text: &[u8]) -> TokenHash {
        Sha256::digest(text).into()
    }

    /// Returns the id as eight hex digits.
    pub fn id_text(&self) -> String {
        format!("{:08x}", self.id)
    }

    /// True if the token has expired at `now_ms`, in milliseconds since 1970.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && self.expires_ms <= now_ms
    }

    /// Checks the limits of name, prefix and kinds. Errors: the name is invalid, the prefix is too
    /// long, or an admin token has a prefix.
    pub fn check(&self) -> Result<(), AccessError> {
        let is_shown = !self.name.chars().any(|one| one.is_control() || one.is_whitespace());
        if !(1..=MAX_TOKEN_NAME).contains(&self.name.len()) || !is_shown {
            return Err(AccessError::BadName);
        }
        if self.prefix.len() > MAX_TOKEN_PREFIX {
            return Err(AccessError::LongPrefix);
        }
        if self.kinds.has(Kinds::ADMIN) && !self.prefix.is_empty() {
            return Err(AccessError::AdminPrefix);
        }
        Ok(())
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.id.to_le_bytes());
        out.extend(self.hash);
        out.extend([self.methods.0, self.kinds.0]);
        for number in [self.changed_ms, self.expires_ms, self.requests, self.bytes] {
            out.extend(number.to_le_bytes());
        }
        for bytes in [self.name.as_bytes(), &self.prefix] {
            out.push(u8::try_from(bytes.len()).expect("it was checked when it was made"));
            out.extend(bytes);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let id = bytes.try_get_u32_le().ok()?;
        let (hash, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        let methods = Methods::of(bytes.try_get_u8().ok()?)?;
        let kinds = Kinds::of(bytes.try_get_u8().ok()?)?;
        let mut number = || bytes.try_get_u64_le().ok();
        let [changed_ms, expires_ms, requests, most] = [number()?, number()?, number()?, number()?];
        let mut text = || {
            let count = usize::from(bytes.try_get_u8().ok()?);
            let (text, rest) = bytes.split_at_checked(count)?;
            *bytes = rest;
            Some(text.to_vec())
        };
        let (name, prefix) = (String::from_utf8(text()?).ok()?, text()?);
        let (hash, bytes) = (*hash, most);
        Some(Self {
            id,
            name,
            hash,
            methods,
            kinds,
            prefix,
            changed_ms,
            expires_ms,
            requests,
            bytes,
        })
    }
}

impl Access {
    /// True if there are neither tokens nor quotas.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.quotas.is_empty()
    }

    /// Returns a copy with `token`, without the tokens that have expired at `now_ms`, in
    /// milliseconds since 1970. Errors: the token is invalid or has expired, its name is taken or
    /// looks like an id, or there are [`MAX_TOKENS`] tokens already.
    pub fn with(&self, token: Token, now_ms: u64) -> Result<Self, AccessError> {
        token.check()?;
        if token.name.chars().any(crate::is_invisible) {
            return Err(AccessError::BadName);
        }
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if token.name.len() == ID_DIGITS && token.name.bytes().all(is_digit) {
            return Err(AccessError::NameLikeId(token.name));
        }
        if token.has_expired(now_ms) {
            return Err(AccessError::Expired);
        }
        let mut next = self.without_expired(now_ms);
        if next.tokens.iter().any(|other| other.name == token.name) {
            return Err(AccessError::NameTaken(token.name));
        }
        if next.tokens.len() >= MAX_TOKENS {
            return Err(AccessError::Full);
        }
        let place = next.tokens.partition_point(|other| other.id < token.id);
        next.tokens.insert(place, token);
        Ok(next)
    }

    /// Returns a copy without the token of this id or name, and without the tokens that have
    /// expired at `now_ms`, in milliseconds since 1970. Errors: no token has this id or name.
    pub fn without(&self, token: &str, now_ms: u64) -> Result<Self, AccessError> {
        let known = self.find(token).ok_or_else(|| AccessError::Unknown(token.to_owned()))?.id;
        let mut next = self.without_expired(now_ms);
        next.tokens.retain(|other| other.id != known);
        Ok(next)
    }

    /// Finds a token by name or, failing that, by id.
    pub fn find(&self, token: &str) -> Option<&Token> {
        let named = self.tokens.iter().find(|other| other.name == token);
        named.or_else(|| self.tokens.iter().find(|other| other.id_text() == token))
    }

    fn without_expired(&self, now_ms: u64) -> Self {
        let living = self.tokens.iter().filter(|token| !token.has_expired(now_ms));
        Self { tokens: living.cloned().collect(), quotas: self.quotas.clone() }
    }

    /// Checks a decoded `Access`: order, uniqueness and limits.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let in_order = self.tokens.windows(2).all(|pair| pair[0].id < pair[1].id);
        let mut names: Vec<&str> = self.tokens.iter().map(|token| token.name.as_str()).collect();
        names.sort_unstable();
        if !in_order || names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("its tokens are not in the order of their ids, or two are the same");
        }
        if self.tokens.len() > MAX_TOKENS || self.tokens.iter().any(|token| token.check().is_err())
        {
            return Err("it has too many tokens, or one that can't be");
        }
        self.check_quotas()
    }

    pub(super) fn put_tokens(&self, out: &mut Vec<u8>) {
        out.extend((self.tokens.len() as u16).to_le_bytes());
        self.tokens.iter().for_each(|token| token.put(out));
    }

    pub(super) fn read_tokens(bytes: &mut &[u8]) -> Option<Vec<Token>> {
        let count = bytes.try_get_u16_le().ok().filter(|count| *count > 0)?;
        (0..count).map(|_| Token::read(bytes)).collect()
    }
}

impl Layout {
    /// Returns the next layout with `access` and no other change: every key stays where it is, and
    /// a transition continues.
    pub fn with_access(&self, access: Access) -> Self {
        let (epoch, base, access) = (self.epoch + 1, self.id(), std::sync::Arc::new(access));
        Self { epoch, base, access, ..self.clone() }
    }
}

#[cfg(test)]
mod tests;
