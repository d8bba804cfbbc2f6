//! Storage quotas: limits on what clients store under a key prefix. A layout carries quotas as it
//! carries tokens.
//!
//! Encoding of a quota, each field with its length in bytes: soft 8 │ hard 8 │ prefix 1 + n. Quotas
//! are encoded in the order of their prefixes.

use bytes::Buf;

use super::access::{Access, AccessError, MAX_TOKEN_PREFIX};

/// Maximum number of quotas: each node repeatedly counts its data under every quota.
pub const MAX_QUOTAS: usize = 64;

/// Maximum length of a quota's key prefix in bytes.
pub const MAX_QUOTA_PREFIX: usize = MAX_TOKEN_PREFIX;

/// Limits on the keys with a prefix, in bytes of keys and values; each key counts once, not once
/// per replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The key prefix; empty = all keys.
    pub prefix: Vec<u8>,
    /// Soft limit in bytes, above which nodes warn; 0 = none.
    pub soft: u64,
    /// Hard limit in bytes, at which nodes refuse writes; 0 = none.
    pub hard: u64,
}

/// Returns the first key after all keys with the prefix; `None` if no key follows them.
pub fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

impl Quota {
    /// Checks that the quota can be set. Errors: the prefix is too long, both limits are 0, or the
    /// soft limit is above the hard limit.
    pub fn check(&self) -> Result<(), AccessError> {
        if self.prefix.len() > MAX_QUOTA_PREFIX {
            return Err(AccessError::LongQuotaPrefix);
        }
        if self.soft == 0 && self.hard == 0 {
            return Err(AccessError::NoLimit);
        }
        if self.hard != 0 && self.soft > self.hard {
            return Err(AccessError::SoftAboveHard { soft: self.soft, hard: self.hard });
        }
        Ok(())
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.soft.to_le_bytes());
        out.extend(self.hard.to_le_bytes());
        out.push(u8::try_from(self.prefix.len()).expect("it was checked when it was set"));
        out.extend(&self.prefix);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (soft, hard) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
        let length = usize::from(bytes.try_get_u8().ok()?);
        let (prefix, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(Self { prefix: prefix.to_vec(), soft, hard })
    }
}

impl Access {
    /// Returns a copy with this quota, which replaces a quota of the same prefix. Errors: the quota
    /// can't be set, or there are [`MAX_QUOTAS`] already.
    pub fn with_quota(&self, quota: Quota) -> Result<Self, AccessError> {
        quota.check()?;
        let mut next = self.clone();
        match next.quotas.binary_search_by(|other| other.prefix.cmp(&quota.prefix)) {
            Ok(place) => next.quotas[place] = quota,
            Err(_) if next.quotas.len() >= MAX_QUOTAS => return Err(AccessError::FullOfQuotas),
            Err(place) => next.quotas.insert(place, quota),
        }
        Ok(next)
    }

    /// Returns a copy without the quota of this prefix. Errors: the prefix has no quota.
    pub fn without_quota(&self, prefix: &[u8]) -> Result<Self, AccessError> {
        let mut next = self.clone();
        let place = next.quotas.binary_search_by(|other| other.prefix[..].cmp(prefix));
        let unknown = |_| AccessError::UnknownQuota(prefix.escape_ascii().to_string());
        next.quotas.remove(place.map_err(unknown)?);
        Ok(next)
    }

    /// Checks decoded quotas: order, number and limits.
    pub(super) fn check_quotas(&self) -> Result<(), &'static str> {
        let in_order = self.quotas.windows(2).all(|pair| pair[0].prefix < pair[1].prefix);
        if !in_order
            || self.quotas.len() > MAX_QUOTAS
            || self.quotas.iter().any(|quota| quota.check().is_err())
        {
            return Err("its quotas are not in the order of their prefixes, or one can't be");
        }
        Ok(())
    }

    pub(super) fn put_quotas(&self, out: &mut Vec<u8>) {
        out.push(self.quotas.len() as u8);
        self.quotas.iter().for_each(|quota| quota.put(out));
    }

    pub(super) fn read_quotas(bytes: &mut &[u8]) -> Option<Vec<Quota>> {
        let count = bytes.try_get_u8().ok().filter(|count| *count > 0)?;
        (0..count).map(|_| Quota::read(bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(prefix: &str, soft: u64, hard: u64) -> Quota {
        Quota { prefix: prefix.into(), soft, hard }
    }

    #[test]
    fn a_prefix_has_one_quota() {
        let access = Access::default().with_quota(quota("b", 1, 2)).unwrap();
        let access = access.with_quota(quota("", 0, 9)).unwrap();
        let access = access.with_quota(quota("b", 5, 0)).unwrap();
        assert_eq!(access.quotas, [quota("", 0, 9), quota("b", 5, 0)]);
        assert!(!access.is_empty());
        let unknown = AccessError::UnknownQuota("a\\xff".to_owned());
        assert_eq!(access.without_quota(b"a\xff"), Err(unknown));
        let access = access.without_quota(b"").unwrap().without_quota(b"b").unwrap();
        assert_eq!(access, Access::default());
    }

    #[test]
    fn an_invalid_quota_is_refused() {
        let with = |quota: Quota| Access::default().with_quota(quota).map(|_| ());
        assert_eq!(with(quota("a", 0, 0)), Err(AccessError::NoLimit));
        let above = AccessError::SoftAboveHard { soft: 3, hard: 2 };
        assert_eq!(with(quota("a", 3, 2)), Err(above));
        assert_eq!(with(quota("a", 3, 3)), Ok(()));
        assert_eq!(with(quota(&"x".repeat(129), 1, 0)), Err(AccessError::LongQuotaPrefix));
        let mut full = Access::default();
        for n in 0..MAX_QUOTAS {
            full = full.with_quota(quota(&format!("{n:03}"), 1, 0)).unwrap();
        }
        assert_eq!(full.with_quota(quota("x", 1, 0)), Err(AccessError::FullOfQuotas));
        assert!(full.with_quota(quota("001", 7, 0)).is_ok());
    }
}
