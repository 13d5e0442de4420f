//! Runs code inside another network namespace.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

use crate::port::dpdk::error::DpdkError;

/// The network namespace that contains a device: the process's own, or another that is kept open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespace(Option<Arc<Other>>);

#[derive(Debug)]
struct Other {
    path: PathBuf,
    file: File,
}

impl Namespace {
    /// Opens the namespace at `path` (such as `/run/netns/NAME`). Without a path, it is the present one.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, DpdkError> {
        let Some(path) = path else { return Ok(Self(None)) };
        match File::open(path) {
            Ok(file) => Ok(Self(Some(Arc::new(Other { path: path.to_owned(), file })))),
            Err(error) => Err(DpdkError::Namespace { path: path.to_owned(), error }),
        }
    }

    /// Runs `work` inside the namespace, on a thread that ends with it, so that no other thread changes its namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, DpdkError> {
        let Some(other) = &self.0 else { return Ok(work()) };
        let error = |error| DpdkError::Namespace { path: other.path.clone(), error };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
                move_into_link_name_space(other.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            let inside = thread.map_err(error)?.join();
            inside
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                .map_err(|e: rustix::io::Errno| error(e.into()))
        })
    }
}

/// Returns whether the calling thread has given up the right to change network devices, as a node does before it serves clients.
pub(crate) fn has_given_up_rights() -> bool {
    capabilities(None).is_ok_and(|own| !own.effective.contains(CapabilitySet::NET_ADMIN))
}
