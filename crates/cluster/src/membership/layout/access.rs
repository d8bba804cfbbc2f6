//! Who may ask the nodes for what: tokens. A layout carries them, and quotas (`quota.rs`), so that
//! each change of them is decided by the council, kept by every node, and known to it while the
//! council is down.
//!
//! ```text
//!   "kvorum_…" ─ SHA-256 ─▶ a token: its methods × its keys × what it is for, until it expires
//! ```
//!
//! As bytes, in the order of the ids, each: id 4 │ hash 32 │ methods 1 │ kinds 1 │ changed 8 │
//! expires 8 │ requests a second 8 │ bytes a second 8 │ name 1 + n │ prefix 1 + n.

use bytes::Buf;
use sha2::{Digest, Sha256};

use super::Layout;
use super::quota::{MAX_QUOTA_PREFIX, MAX_QUOTAS, Quota};

/// Digits of a token's id, as people write it.
const ID_DIGITS: usize = 8;

/// Tokens at most: with the longest names and prefixes a quarter of a mebibyte, which every node
/// keeps, and which is sent with each layout.
pub const MAX_TOKENS: usize = 1024;

/// Bytes of a token's name at most.
pub const MAX_TOKEN_NAME: usize = 64;

/// Bytes of the prefix of a token's keys at most.
pub const MAX_TOKEN_PREFIX: usize = 128;

/// SHA-256 of a token's text: what is kept of it.
pub type TokenHash = [u8; 32];

/// A set of a few things, of which each is a bit.
macro_rules! bits {
    ($(#[$doc:meta])* $name:ident { $($(#[$one:meta])* $bit:ident = $value:literal),* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name(u8);

        impl $name {
            $($(#[$one])* pub const $bit: Self = Self($value);)*
            /// The set of all of them.
            pub const ALL: Self = Self($($value |)* 0);

            /// The set of these bits, if there are such.
            fn of(bits: u8) -> Option<Self> {
                (bits != 0 && bits & !Self::ALL.0 == 0).then_some(Self(bits))
            }

            /// What is in one of both.
            #[must_use]
            pub const fn or(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Whether all of the other one is in this one.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }
    };
}

bits! {
    /// Methods of requests.
    Methods {
        /// `GET` and `HEAD` requests.
        GET = 1,
        /// Requests by `PUT`.
        PUT = 2,
        /// Requests by `DELETE`.
        DELETE = 4,
        /// Requests by `POST`.
        POST = 8
    }
}

bits! {
    /// What requests are about.
    Kinds {
        /// Keys and values.
        DATA = 1,
        /// What a node says of itself.
        METRICS = 2,
        /// What is done to nodes, and to the cluster.
        ADMIN = 4
    }
}

/// A token, as nodes know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Random: it tells it from others, also from earlier ones of its name.
    pub id: u32,
    /// What people call it; no two have one name.
    pub name: String,
    /// Of its text.
    pub hash: TokenHash,
    /// The methods that it is good for.
    pub methods: Methods,
    /// What it is for.
    pub kinds: Kinds,
    /// What the keys begin with that it is good for.
    pub prefix: Vec<u8>,
    /// When it was made, in milliseconds since 1970.
    pub changed_ms: u64,
    /// When it ends, in milliseconds since 1970; 0 = never.
    pub expires_ms: u64,
    /// Requests a second that a node answers; 0 = any.
    pub requests: u64,
    /// Bytes a second of their bodies, and of those of the answers; 0 = any.
    pub bytes: u64,
}

/// Why there is no such access. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// A name that is taken.
    #[error("there is a token {0:?} already: revoke it first, or give the new one another name")]
    NameTaken(String),
    /// No name, or none that can be shown.
    #[error("a token's name is 1 to {MAX_TOKEN_NAME} bytes of visible characters")]
    BadName,
    /// A name that an id may look like: who revokes by id would revoke another token.
    #[error("{0:?} looks like the id of a token: give the token another name")]
    NameLikeId(String),
    /// A prefix that is too long.
    #[error("a token's prefix has {MAX_TOKEN_PREFIX} bytes at most")]
    LongPrefix,
    /// Who may administer a cluster gives itself any right.
    #[error(
        "a token for admin can't be limited to a prefix: who has it can make tokens for all keys"
    )]
    AdminPrefix,
    /// It would end before it begins.
    #[error("the token would have expired already")]
    Expired,
    /// There are too many.
    #[error("there are {MAX_TOKENS} tokens, and can't be more: revoke some")]
    Full,
    /// Nobody has it.
    #[error("there is no token of the id or name {0:?}: kvorum token list")]
    Unknown(String),
    /// A quota's prefix that is too long.
    #[error("a quota's prefix has {MAX_QUOTA_PREFIX} bytes at most")]
    LongQuotaPrefix,
    /// It would do nothing.
    #[error("a quota needs a soft limit or a hard one, of 1 byte or more")]
    NoLimit,
    /// The warning would come after writes are refused.
    #[error("the soft limit, {soft} bytes, is above the hard one, {hard} bytes")]
    SoftAboveHard {
        /// The soft limit as given, in bytes.
        soft: u64,
        /// The hard limit as given, in bytes.
        hard: u64,
    },
    /// There are too many.
    #[error("there are {MAX_QUOTAS} quotas, and can't be more: remove some")]
    FullOfQuotas,
    /// Nobody has set it.
    #[error("there is no quota of the prefix \"{0}\": kvorum quota list")]
    UnknownQuota(String),
}

/// What a layout says of who may ask for what, and store how much.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The tokens, in the order of their ids.
    pub tokens: Vec<Token>,
    /// How much may be stored, in the order of the prefixes.
    pub quotas: Vec<Quota>,
}

impl Token {
    /// What is kept of a token's text.
    pub fn hash_of(text: &[u8]) -> TokenHash {
        Sha256::digest(text).into()
    }

    /// Its id as people see it.
    pub fn id_text(&self) -> String {
        format!("{:08x}", self.id)
    }

    /// Whether it has ended by then.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && self.expires_ms <= now_ms
    }

    /// Whether it can be made.
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
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.quotas.is_empty()
    }

    /// With one more token. Those that have expired are left out.
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
        let mut next = self.living(now_ms);
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

    /// Without the token of this id or name. Those that have expired are left out too.
    pub fn without(&self, token: &str, now_ms: u64) -> Result<Self, AccessError> {
        let known = self.find(token).ok_or_else(|| AccessError::Unknown(token.to_owned()))?.id;
        let mut next = self.living(now_ms);
        next.tokens.retain(|other| other.id != known);
        Ok(next)
    }

    /// The token of this name, or of this id.
    pub fn find(&self, token: &str) -> Option<&Token> {
        let named = self.tokens.iter().find(|other| other.name == token);
        named.or_else(|| self.tokens.iter().find(|other| other.id_text() == token))
    }

    fn living(&self, now_ms: u64) -> Self {
        let living = self.tokens.iter().filter(|token| !token.has_expired(now_ms));
        Self { tokens: living.cloned().collect(), quotas: self.quotas.clone() }
    }

    /// Whether all of it fits together.
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
    /// The one that follows with another access, and nothing else: no key is placed otherwise, and
    /// what moves goes on moving.
    pub fn with_access(&self, access: Access) -> Self {
        let (epoch, base, access) = (self.epoch + 1, self.id(), std::sync::Arc::new(access));
        Self { epoch, base, access, ..self.clone() }
    }
}

#[cfg(test)]
mod tests;
