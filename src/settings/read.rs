//! Bounded reads of the files that settings name. A pipe without data must delay neither the thread
//! that rereads the files, nor the stop of the node.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// Time for which a pipe may have no data. A command that writes a secret into the pipe takes less.
const PIPE_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Opens a file without blocking. A pipe without a writer then reads as empty.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Reads up to `most` bytes. Fails if a pipe has no data for a second.
pub(crate) fn read(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), file.take(most));
    loop {
        match rest.read_to_end(&mut bytes) {
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&PIPE_TIMEOUT))? == 0 {
                    let what = "it is a pipe into which nothing was written for a second";
                    return Err(io::Error::new(ErrorKind::TimedOut, what));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_pipe_is_read_to_its_end_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(read(&open(&path).unwrap(), 10).unwrap(), b"", "there is no writer");
        let reader = open(&path).unwrap();
        let mut writer = File::options().write(true).open(&path).unwrap();
        let error = read(&reader, 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let written = thread::spawn(move || writer.write_all(b"secret").unwrap());
        let read = read(&reader, 10).unwrap();
        written.join().unwrap();
        assert_eq!(read, b"secret");
    }

    #[test]
    fn only_the_beginning_of_a_long_file_is_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 1000]).unwrap();
        assert_eq!(read(&open(file.path()).unwrap(), 11).unwrap(), [7; 11]);
    }
}
