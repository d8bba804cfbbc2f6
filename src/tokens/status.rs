//! Status and changes of tokens: the JSON of `/admin/tokens` and of the paths below it, without
//! unknown fields, and fields without a restriction.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use protocol::layout::{Kinds, Methods, Token};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::operations::access::{ChangeError, change};
use crate::tokens::lookup::{creation_time_ms, now_ms};

/// Prefix of every token's text. Scanners for leaked secrets recognize tokens by it.
const MARK: &str = "kvorum_";

/// Random bytes of a token: 256 bits.
const RANDOM: usize = 32;

/// A token without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenStatus {
    /// Id of the token, 8 hexadecimal digits.
    pub(crate) id: String,
    /// Name of the token. People use it to recognize the token.
    pub(crate) name: String,
    /// Permitted purposes: `data`, `metrics`, `admin`.
    #[serde(rename = "for")]
    pub(crate) kinds: Vec<String>,
    /// Permitted methods: `GET` (and `HEAD`), `PUT`, `DELETE`, `POST`.
    pub(crate) methods: Vec<String>,
    /// Prefix of the permitted keys, if it is UTF-8. Without this field and `prefix_base64` all
    /// keys are permitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    /// Prefix of the permitted keys in Base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_base64: Option<String>,
    /// Creation time, in milliseconds since 1970.
    pub(crate) changed_ms: u64,
    /// Expiry, in milliseconds since 1970; missing = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_ms: Option<u64>,
    /// True if the token has expired.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) expired: bool,
    /// Rate limit at each node, in requests per second; missing = unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_second: Option<u64>,
    /// Rate limit at each node for received and sent bodies together, in bytes per second; missing
    /// = unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<u64>,
}

/// All tokens of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TokenList {
    /// Epoch of the layout that has the tokens.
    pub(crate) epoch: u64,
    /// The time that decides on this node whether a token has expired, in milliseconds since 1970.
    pub(crate) now_ms: u64,
    /// The tokens, sorted by name.
    pub(crate) tokens: Vec<TokenStatus>,
}

/// A newly created token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TokenMade {
    /// The token's text. Only this answer has it.
    pub(crate) token: String,
    /// The token's status.
    #[serde(flatten)]
    pub(crate) status: TokenStatus,
}

/// The properties of a token to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewToken {
    pub(crate) name: String,
    pub(crate) methods: Methods,
    pub(crate) kinds: Kinds,
    pub(crate) prefix: Vec<u8>,
    /// Time to live of the token in milliseconds; 0 = unlimited.
    pub(crate) lives_ms: u64,
    /// Rate limit at each node, in requests per second; 0 = unlimited.
    pub(crate) requests: u64,
    /// Rate limit at each node, in bytes per second; 0 = unlimited.
    pub(crate) bytes: u64,
}

impl TokenStatus {
    fn of(token: &Token, now_ms: u64) -> Self {
        let any = |number: u64| Some(number).filter(|number| *number > 0);
        let prefix = Some(token.prefix.clone()).filter(|prefix| !prefix.is_empty());
        let (prefix, prefix_base64) = match prefix.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(bytes)) => (None, Some(STANDARD.encode(bytes.as_bytes()))),
        };
        Self {
            id: token.id_text(),
            name: token.name.clone(),
            kinds: granted_names(&KINDS, |kind| token.kinds.has(kind)),
            methods: granted_names(&METHODS, |method| token.methods.has(method)),
            prefix,
            prefix_base64,
            changed_ms: token.changed_ms,
            expires_ms: any(token.expires_ms),
            expired: token.has_expired(now_ms),
            requests_per_second: any(token.requests),
            bytes_per_second: any(token.bytes),
        }
    }
}

/// The kinds of requests and their names.
pub(crate) const KINDS: [(Kinds, &str); 3] =
    [(Kinds::DATA, "data"), (Kinds::METRICS, "metrics"), (Kinds::ADMIN, "admin")];

/// The methods and their names.
pub(crate) const METHODS: [(Methods, &str); 4] = [
    (Methods::GET, "GET"),
    (Methods::PUT, "PUT"),
    (Methods::DELETE, "DELETE"),
    (Methods::POST, "POST"),
];

/// Returns the names of the kinds or methods for which `has` is true.
pub(crate) fn granted_names<T: Copy>(all: &[(T, &str)], has: impl Fn(T) -> bool) -> Vec<String> {
    all.iter().filter(|(one, _)| has(*one)).map(|(_, text)| (*text).to_owned()).collect()
}

/// Returns the tokens of the layout in force.
pub(crate) fn list(node: &Node) -> TokenList {
    let (layout, now_ms) = (node.shared.membership.layouts.active_layout(), now_ms(node));
    let tokens = layout.access.tokens.iter().map(|token| TokenStatus::of(token, now_ms));
    let mut tokens: Vec<TokenStatus> = tokens.collect();
    tokens.sort_by(|one, other| one.name.cmp(&other.name));
    TokenList { epoch: layout.epoch, now_ms, tokens }
}

/// Creates a token. Returns after the metadata quorum has decided the change, and this node uses
/// it.
pub(crate) async fn create(node: &Node, wanted: NewToken) -> Result<TokenMade, ChangeError> {
    let (random, id) = (random::<RANDOM>()?, u32::from_le_bytes(random()?));
    let text = format!("{MARK}{}", URL_SAFE_NO_PAD.encode(random));
    let now_ms = creation_time_ms(node);
    let NewToken { name, methods, kinds, prefix, lives_ms, requests, bytes } = wanted;
    let token = Token {
        id,
        name,
        hash: Token::hash_of(text.as_bytes()),
        methods,
        kinds,
        prefix,
        changed_ms: now_ms,
        expires_ms: if lives_ms == 0 { 0 } else { now_ms + lives_ms },
        requests,
        bytes,
    };
    change(node, |access| match access.tokens.contains(&token) {
        true => Ok(None),
        false => access.with(token.clone(), now_ms).map(Some),
    })
    .await
    .map_err(|error| match error {
        ChangeError::Undecided => ChangeError::UndecidedToken,
        error => error,
    })?;
    Ok(TokenMade { token: text, status: TokenStatus::of(&token, now_ms) })
}

/// Revokes the token with this id or name. Returns after the change is decided.
pub(crate) async fn revoke(node: &Node, token: &str) -> Result<TokenStatus, ChangeError> {
    let now_ms = creation_time_ms(node);
    let mut revoked: Option<Token> = None;
    change(node, |access| match &revoked {
        Some(revoked) if !access.tokens.contains(revoked) => Ok(None),
        Some(revoked) => access.without(&revoked.id_text(), now_ms).map(Some),
        None => {
            revoked = access.find(token).cloned();
            access.without(token, now_ms).map(Some)
        }
    })
    .await?;
    let revoked = revoked.expect("what is unknown was refused");
    Ok(TokenStatus::of(&revoked, now_ms))
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // For such a small request the kernel never returns fewer bytes.
    if getrandom(&mut bytes, GetRandomFlags::empty())? < N {
        return Err(io::Error::other("the kernel returned too few random bytes"));
    }
    Ok(bytes)
}
