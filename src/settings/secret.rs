//! Secrets: the cluster secret, by which nodes authenticate each other, and tokens. A secret is
//! read from a file or a variable, and never written.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::settings::read;

/// A kind of secret, and its sources.
#[derive(Debug)]
pub(crate) struct SecretKind {
    /// Flag that names the file.
    flag: &'static str,
    /// Variable with the secret itself. There is no such flag, because every user of the machine
    /// can read command lines.
    pub(crate) variable: &'static str,
    what: &'static str,
}

/// The cluster secret, by which nodes authenticate each other.
pub(crate) const CLUSTER: SecretKind = SecretKind {
    flag: "--cluster-secret-file",
    variable: "KVORUM_CLUSTER_SECRET",
    what: "the cluster's secret",
};

/// The second accepted secret during the replacement of the cluster secret.
pub(crate) const SECOND: SecretKind = SecretKind {
    flag: "--cluster-secret-also-file",
    // Only a file can have this secret, so it can be removed while the node runs.
    variable: "",
    what: "a secret of the cluster",
};

/// The token that permits every request to its node.
pub(crate) const ADMIN: SecretKind = SecretKind {
    flag: "--admin-token-file",
    variable: "KVORUM_ADMIN_TOKEN",
    what: "the admin token",
};

/// The token that client commands send.
pub(crate) const CLIENT: SecretKind =
    SecretKind { flag: "--token-file", variable: "KVORUM_TOKEN", what: "a token" };

/// Minimum number of bytes of a secret: 128 bits, if the bytes are random.
const MIN: usize = 16;
/// Maximum number of bytes of a secret. A longer file is probably not a secret.
const MAX: usize = 4096;
/// Permission bits by which users other than the owner can read a file.
const READABLE_BY_OTHERS: u32 = 0o044;

/// Reason why a secret was not read. The text does not contain the refused bytes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("set only one of {flag} and {variable}")]
    Twice { flag: &'static str, variable: &'static str },
    #[error("{variable}: {source}")]
    Variable { variable: &'static str, source: WrongLength },
    #[error("{flag} {}: {source}", path.display())]
    File { flag: &'static str, path: PathBuf, source: WrongLength },
    #[error("{flag} {}: {source}", path.display())]
    Unreadable { flag: &'static str, path: PathBuf, source: io::Error },
}

/// Length of a text that is too short or too long for a secret, in bytes.
#[derive(Debug, thiserror::Error)]
#[error("it has {0} bytes, and no secret or token has so few or many: {MIN} to {MAX}, random")]
pub(crate) struct WrongLength(usize);

/// The bytes of a secret. `Debug` does not print them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Creates a secret without trailing white space, such as the last line feed of a file.
    fn new(mut bytes: Vec<u8>) -> Result<Self, WrongLength> {
        bytes.truncate(bytes.trim_ascii_end().len());
        match bytes.len() {
            MIN..=MAX => Ok(Self(bytes)),
            len => Err(WrongLength(len)),
        }
    }

    /// Returns the secret's bytes, which may only be used to prove possession of the secret.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl SecretKind {
    /// Returns the variable's value; `None` if it is not set or empty.
    pub(crate) fn variable(&self) -> Option<OsString> {
        std::env::var_os(self.variable).filter(|value| !value.is_empty())
    }

    /// Reads the secret from the file or from the variable; `None` if neither is given, an error if
    /// both are. The second value is a warning, if there is one.
    pub(crate) fn load(
        &self,
        file: Option<&Path>,
        variable: Option<OsString>,
    ) -> Result<(Option<Secret>, Option<String>), SecretError> {
        match (file, variable) {
            (None, None) => Ok((None, None)),
            (Some(_), Some(_)) => {
                Err(SecretError::Twice { flag: self.flag, variable: self.variable })
            }
            (None, Some(value)) => {
                let bad = |source| SecretError::Variable { variable: self.variable, source };
                Ok((Some(Secret::new(value.into_vec()).map_err(bad)?), None))
            }
            (Some(path), None) => self.read(path).map(|(secret, warning)| (Some(secret), warning)),
        }
    }

    /// Reads the secret from a file. The second value is a warning if other users can read the
    /// file.
    pub(crate) fn read(&self, file: &Path) -> Result<(Secret, Option<String>), SecretError> {
        let (flag, path) = (self.flag, || file.to_owned());
        let (bytes, mode) = bytes_of(file).map_err(|source| SecretError::Unreadable {
            flag,
            path: path(),
            source,
        })?;
        let secret = Secret::new(bytes).map_err(|source| SecretError::File {
            flag,
            path: path(),
            source,
        })?;
        let warning = (mode & READABLE_BY_OTHERS != 0).then(|| {
            let (shown, what) = (file.display(), self.what);
            format!("{shown} holds {what}, and others can read it: chmod 600")
        });
        Ok((secret, warning))
    }

    /// Reads a secret from a file; `None` if the file is missing or empty.
    pub(crate) fn read_if_any(&self, file: &Path) -> Result<Option<Secret>, SecretError> {
        match bytes_of(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok((bytes, _)) if bytes.trim_ascii().is_empty() => Ok(None),
            _ => self.read(file).map(|(secret, _)| Some(secret)),
        }
    }
}

/// Reads a file, up to one byte more than the maximum of a secret. Returns the bytes and the file's
/// mode.
fn bytes_of(path: &Path) -> io::Result<(Vec<u8>, u32)> {
    let file = read::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    Ok((read::read(&file, MAX as u64 + 1)?, mode))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str = "sixteen letters.";

    #[test]
    fn a_secret_comes_from_a_file_or_the_variable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, format!("{GOOD}\r\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let (from_file, warning) = CLUSTER.load(Some(&path), None).unwrap();
        assert_eq!((from_file.as_ref().unwrap().bytes(), warning), (GOOD.as_bytes(), None));
        assert_eq!(CLUSTER.load(None, Some(GOOD.into())).unwrap(), (from_file, None));
        assert_eq!(CLUSTER.load(None, None).unwrap(), (None, None));
        for mode in [0o640, 0o604] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let (_, warning) = CLUSTER.load(Some(&path), None).unwrap();
            assert!(warning.unwrap().contains("others can read it"));
        }
    }

    #[test]
    fn an_invalid_secret_is_refused_without_being_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        for bad in ["", "fifteen letters", "padded         \n", &"x".repeat(4097)] {
            fs::write(&path, bad).unwrap();
            for error in [CLUSTER.load(Some(&path), None), CLUSTER.load(None, Some(bad.into()))] {
                let error = error.unwrap_err().to_string();
                assert!(error.contains("16 to 4096, random") && !error.contains('\n'), "{error}");
                assert!(bad.is_empty() || !error.contains(bad), "{error}");
            }
        }
        let both = CLUSTER.load(Some(&path), Some(GOOD.into())).unwrap_err().to_string();
        assert!(both.contains("set only one of"), "{both}");
        let missing =
            CLUSTER.load(Some(Path::new("/nowhere/secret")), None).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/secret"), "{missing}");
        assert!(
            CLUSTER.load(Some(Path::new("/dev/zero")), None).is_err(),
            "it does not read for ever"
        );
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::new(GOOD.into()).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
