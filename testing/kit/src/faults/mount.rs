//! File systems for faults: small file systems, and one that loses unsynced writes on demand.
#![allow(unsafe_code, reason = "an ioctl without a safe wrapper")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::Failure;
use crate::faults::run;

/// The ioctl `EXT4_IOC_SHUTDOWN`, `_IOR('X', 125, __u32)`.
const FS_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;

/// Argument of the ioctl for an immediate shutdown: afterwards neither data nor journal reach the
/// disk.
const NO_LOG_FLUSH: u32 = 2;

/// A separate file system, unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    dir: TempDir,
    source: PathBuf,
    kind: &'static str,
    options: String,
    mounted: bool,
}

/// Creates a sparse ext4 image of `bytes`.
pub fn make_image(path: &Path, bytes: u64) -> Result<(), Failure> {
    File::create(path)?.set_len(bytes)?;
    run("mkfs.ext4", &["-q", "-F", &path.display().to_string()])
}

impl Mount {
    /// Mounts a tmpfs of `mebibytes` MiB.
    pub fn tmpfs(mebibytes: u64) -> Result<Self, Failure> {
        Self::make("tmpfs", Path::new("tmpfs"), format!("size={mebibytes}m"))
    }

    /// Mounts an image that [`make_image`] created.
    pub fn image(path: &Path) -> Result<Self, Failure> {
        Self::make("ext4", path, "loop".to_owned())
    }

    fn make(kind: &'static str, source: &Path, options: String) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Skipped("mounting needs root".to_owned()));
        }
        let dir = tempfile::tempdir()?;
        let mut mount = Self { dir, source: source.to_owned(), kind, options, mounted: false };
        mount.attach()?;
        Ok(mount)
    }

    fn attach(&mut self) -> Result<(), Failure> {
        let (source, path) = (self.source.display().to_string(), self.path().display().to_string());
        run("mount", &["-t", self.kind, "-o", &self.options, &source, &path])?;
        self.mounted = true;
        Ok(())
    }

    fn detach(&mut self) -> Result<(), Failure> {
        self.mounted = false;
        run("umount", &[&self.path().display().to_string()])
    }

    /// Returns the path of the mount point.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts the file system and mounts it again, as after a reboot.
    pub fn remount(&mut self) -> Result<(), Failure> {
        self.detach()?;
        if self.kind == "ext4" {
            // In the boot sequence too, exit code 1 only means that e2fsck has corrected errors.
            let _ = run("e2fsck", &["-p", &self.source.display().to_string()]);
        }
        self.attach()
    }

    /// Resizes a tmpfs to `mebibytes` MiB.
    pub fn resize(&self, mebibytes: u64) -> Result<(), Failure> {
        let options = format!("remount,size={mebibytes}m");
        run("mount", &["-o", &options, &self.path().display().to_string()])
    }

    /// Remounts the file system with writes allowed ("rw") or forbidden ("ro").
    pub fn remount_as(&self, option: &str) -> Result<(), Failure> {
        let options = format!("remount,{option}");
        run("mount", &["-o", &options, &self.path().display().to_string()])
    }

    /// Cuts the power of the file system: unsynced writes are lost.
    pub fn cut_power(&self) -> Result<(), Failure> {
        let root = File::open(self.path())?;
        let how = NO_LOG_FLUSH;
        // SAFETY: the descriptor is open, and the call only reads the four bytes at the given
        // address. No safe wrapper exists, and no program in Debian's base system makes this call.
        let outcome = unsafe { libc::ioctl(root.as_raw_fd(), FS_IOC_SHUTDOWN, &raw const how) };
        match outcome {
            0 => Ok(()),
            _ => Err(Failure::Skipped(format!(
                "FS_IOC_SHUTDOWN: {}",
                std::io::Error::last_os_error()
            ))),
        }
    }

    /// Writes a file of `bytes` bytes, and returns its path.
    pub fn fill_leaving(&self, bytes: u64) -> Result<PathBuf, Failure> {
        let path = self.path().join("ballast");
        fs::write(&path, vec![0xbb; bytes as usize])?;
        Ok(path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            // A lazy unmount, because a process that is about to exit may still use the file
            // system.
            let _ = run("umount", &["-l", &self.path().display().to_string()]);
        }
    }
}
