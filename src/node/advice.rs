//! Advice on operating system errors. An operating system error tells nothing about the contents of
//! a data directory, so no advice recommends a start without the directory.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Resource, getegid, geteuid, getrlimit};

/// Advice after a failed operation on a data directory, displayed as sentences after the error. The
/// advice is empty if the cause is not an operating system error.
#[derive(Debug)]
pub(crate) struct Advice<'a> {
    cause: Option<&'a io::Error>,
    data: &'a Path,
}

impl<'a> Advice<'a> {
    /// Returns the advice for the operating system error in the source chain of `error`.
    pub(crate) fn of(error: &'a (dyn Error + 'static), data: &'a Path) -> Self {
        let mut next = Some(error);
        let mut cause = None;
        while let (Some(error), None) = (next, cause) {
            cause = error.downcast_ref::<io::Error>();
            cause = cause.or_else(|| error.downcast_ref::<Arc<io::Error>>().map(AsRef::as_ref));
            next = error.source();
        }
        Self { cause, data }
    }
}

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = self.cause else { return Ok(()) };
        f.write_str(". Nothing was deleted. ")?;
        match Errno::from_io_error(cause) {
            Some(Errno::ACCESS) => write_ownership(f, self.data)?,
            Some(errno) => f.write_str(advice(errno))?,
            None => f.write_str("Correct what the operating system reports")?,
        }
        f.write_str(", then start again")
    }
}

/// Writes the user of the process, and the owner of the directory.
fn write_ownership(f: &mut fmt::Formatter<'_>, data: &Path) -> fmt::Result {
    write!(f, "kvorum runs as user {}, group {}", geteuid(), getegid())?;
    if let Ok(found) = fs::metadata(data) {
        let mode = found.permissions().mode() & 0o7777;
        let (user, group) = (found.uid(), found.gid());
        write!(f, "; the directory belongs to user {user}, group {group}, mode {mode:04o}")?;
    }
    if let Some((name, owner)) = file_of_other_user(data) {
        write!(f, "; {name} in it belongs to user {owner}")?;
    }
    f.write_str(
        ": run it as the directory's owner, or give the directory and all files in it to its user \
         (chown -R, chmod -R u+rwX), and let that user pass through the directories above",
    )
}

/// Returns the name and owner of the first file in a directory, by name, that does not belong to
/// this process's user. `None` if there is no such file.
fn file_of_other_user(data: &Path) -> Option<(String, u32)> {
    let files = fs::read_dir(data).ok()?.flatten();
    let owned = files.filter_map(|file| Some((file.file_name(), file.metadata().ok()?.uid())));
    let (name, owner) = owned.filter(|(_, owner)| *owner != geteuid().as_raw()).min()?;
    Some((name.to_string_lossy().into_owned(), owner))
}

/// Returns the advice for a system error, without the final period.
pub(crate) fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM => {
            "The file system does not allow it: see whether a file is immutable (lsattr)"
        }
        Errno::NOTDIR | Errno::ISDIR => {
            "A part of the path is a file where a directory is expected, or the other way round: \
             correct the path"
        }
        Errno::LOOP => "A symbolic link in the path leads back to itself: correct that link",
        Errno::NOENT => {
            "A part of the path does not exist, or a symbolic link in it leads to a place that \
             does not exist: mount what belongs there, or correct the link"
        }
        Errno::NAMETOOLONG => "Shorten the path",
        Errno::ROFS => {
            "The file system is mounted read-only, as the kernel does after errors of a disk \
             (dmesg): repair it, and mount it for writing"
        }
        Errno::NOSPC | Errno::DQUOT => "Free some space (df, df -i, quota)",
        Errno::FBIG => "Raise the limit of file sizes (ulimit -f, LimitFSIZE=)",
        Errno::MFILE => "Raise the limit of open files of this process (ulimit -n, LimitNOFILE=)",
        Errno::NFILE => "Raise the limit of open files of this machine (sysctl fs.file-max)",
        Errno::NOMEM => "Free some memory",
        Errno::AGAIN => "Raise the limit of threads (ulimit -u, TasksMax=)",
        Errno::IO | Errno::NXIO | Errno::NODEV | Errno::STALE | Errno::NOTCONN => {
            "The disk or its file system fails (dmesg), which says nothing about the files in the \
             directory: copy them to another disk as far as they can be read, before anything else \
             is done to them; repair or replace the disk"
        }
        _ => "Correct what the operating system reports",
    }
}

/// Returns the advice for an error that a resource limit may have caused; empty for other errors.
pub(crate) fn limit_advice(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(errno @ Errno::MFILE) => {
            let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            format!(": the limit is {most}. {}", advice(errno))
        }
        Some(errno @ (Errno::NFILE | Errno::AGAIN | Errno::NOMEM)) => {
            format!(". {}", advice(errno))
        }
        _ => String::new(),
    }
}

/// Returns the advice for the error of binding a port.
pub(crate) fn port_advice(error: &io::Error) -> String {
    let what = match Errno::from_io_error(error) {
        Some(Errno::ADDRINUSE) => {
            "another process listens there (ss -ltnp names it): stop it, or choose another --listen"
        }
        Some(Errno::ADDRNOTAVAIL) => {
            "no interface of this machine has that address (ip address): correct --listen"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "this user may not use that port: choose one from 1024 on in --listen, or give the \
             process CAP_NET_BIND_SERVICE"
        }
        _ => return limit_advice(error),
    };
    format!(": {what}. Nothing was changed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Wraps(#[source] server::StartError);

    #[test]
    fn every_os_error_has_advice_and_no_advice_is_an_empty_directory() {
        for errno in 1..134 {
            let error = Wraps(server::StartError::Unreadable(io::Error::from_raw_os_error(errno)));
            let said = Advice::of(&error, Path::new("/proc")).to_string();
            assert!(said.starts_with(". Nothing was deleted. "), "{errno}: {said}");
            assert!(said.ends_with(", then start again"), "{errno}: {said}");
            assert!(!said.contains("empty") && !said.contains('\n'), "{errno}: {said}");
        }
        let refused = server::StartError::Unreadable(Errno::ACCESS.into());
        let data = tempfile::tempdir().unwrap();
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let said = Advice::of(&refused, data.path()).to_string();
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let owned = format!("belongs to user {user}, group {group}, mode 0555: run it as");
        assert!(said.contains(&owned), "{said}");
    }

    #[test]
    fn the_owner_of_a_file_of_another_user_is_named() {
        let data = tempfile::tempdir().unwrap();
        for name in ["STORE", "LOCK"] {
            fs::write(data.path().join(name), "").unwrap();
        }
        if std::os::unix::fs::chown(data.path().join("STORE"), Some(12_345), None).is_err() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let refused = server::StartError::Unreadable(Errno::ACCESS.into());
        let said = Advice::of(&refused, data.path()).to_string();
        assert!(said.contains("; STORE in it belongs to user 12345: run it as"), "{said}");
    }

    #[test]
    fn an_occupied_port_has_advice() {
        let said = port_advice(&Errno::ADDRINUSE.into());
        assert!(said.contains("stop it, or choose another --listen"), "{said}");
    }

    #[test]
    fn an_error_without_an_os_error_has_no_advice() {
        let another = server::StartError::Another("the name".to_owned());
        assert_eq!(Advice::of(&another, Path::new("/proc")).to_string(), "");
    }
}
