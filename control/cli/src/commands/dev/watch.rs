//! What happens while a function is worked on: its files change, and somebody wants to end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::folder_of;

/// Editors write a file in several steps: a change is over when nothing has happened for so long.
const QUIET: Duration = Duration::from_millis(100);
/// Where cargo builds.
const TARGET: &str = "target";

/// Files that change.
pub(super) struct Changes {
    watcher: RecommendedWatcher,
    folder: PathBuf,
    watched: BTreeSet<PathBuf>,
    heard: mpsc::UnboundedReceiver<PathBuf>,
    modules: BTreeSet<PathBuf>,
}

impl Changes {
    /// Those beside a manifest and below, but for what is built there and what is hidden; and these modules, wherever they are.
    pub(super) fn of<'m>(manifest: &Path, modules: impl Iterator<Item = &'m Path>) -> anyhow::Result<Self> {
        let folder = folder_of(manifest);
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let (tell, heard) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            if matches!(event.kind, EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_)) {
                // Fails only when nobody wants to know any more.
                event.paths.into_iter().for_each(|path| _ = tell.send(path));
            }
        })?;
        // One that is not built yet is not there; its folder may be.
        let absolute = |module: &Path| Some(folder_of(module).canonicalize().ok()?.join(module.file_name()?));
        let modules: BTreeSet<PathBuf> = modules.filter_map(absolute).collect();
        let mut changes = Self { watcher, folder, watched: BTreeSet::new(), heard, modules };
        changes.watch_folders()?;
        let around: Vec<PathBuf> = changes.modules.iter().map(|module| folder_of(module).to_owned()).collect();
        around.into_iter().try_for_each(|folder| changes.watch(folder, RecursiveMode::NonRecursive))?;
        Ok(changes)
    }

    /// Looks at each folder of the function, as far as it does not yet: all but what is built would be thousands.
    fn watch_folders(&mut self) -> anyhow::Result<()> {
        let entries = std::fs::read_dir(&self.folder).with_context(|| self.folder.display().to_string())?;
        let folders = entries.filter_map(|entry| Some(entry.ok()?.path()).filter(|path| path.is_dir()));
        let folders: Vec<PathBuf> = folders.filter(|path| self.is_source(path)).collect();
        self.watch(self.folder.clone(), RecursiveMode::NonRecursive)?;
        folders.into_iter().try_for_each(|folder| self.watch(folder, RecursiveMode::Recursive))
    }

    fn watch(&mut self, folder: PathBuf, mode: RecursiveMode) -> anyhow::Result<()> {
        if self.watched.insert(folder.clone()) {
            let watching = self.watcher.watch(&folder, mode);
            watching.with_context(|| format!("{}: its changes cannot be seen", folder.display()))?;
        }
        Ok(())
    }

    fn is_source(&self, path: &Path) -> bool {
        if self.modules.contains(path) {
            return true;
        }
        let Ok(within) = path.strip_prefix(&self.folder) else { return false };
        let mut parts = within.components().map(|part| part.as_os_str().to_string_lossy());
        let is_built = within.starts_with(TARGET) || within == Path::new("Cargo.lock");
        !is_built && parts.all(|part| !part.starts_with('.') && !part.ends_with('~'))
    }

    /// Waits until something has changed, and does not go on changing.
    pub(super) async fn next(&mut self) -> anyhow::Result<()> {
        loop {
            let path = self.heard.recv().await.context("files are not looked at any more")?;
            if self.is_source(&path) {
                break;
            }
        }
        while let Ok(Some(_)) = tokio::time::timeout(QUIET, self.heard.recv()).await {}
        self.watch_folders()
    }
}

/// Somebody wants the command to end: by Ctrl-C, by hanging up, or by a signal.
pub(super) struct Interrupt([Signal; 3]);

impl Interrupt {
    /// From now on the process does not end by itself.
    pub(super) fn expect() -> anyhow::Result<Self> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    /// Waits for it.
    pub(super) async fn came(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_heard(changes: &mut Changes) -> bool {
        tokio::time::timeout(Duration::from_secs(2), changes.next()).await.is_ok()
    }

    #[tokio::test]
    async fn a_source_that_changes_is_heard_of_once_and_what_is_built_or_hidden_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("pinion.toml");
        for inner in ["src/deep", "target/release", ".git"] {
            std::fs::create_dir_all(folder.path().join(inner)).unwrap();
        }
        let mut changes = Changes::of(&manifest, std::iter::empty()).unwrap();
        for silent in ["target/release/m.wasm", ".git/index", "Cargo.lock", "src/.lib.rs.swp", "src/lib.rs~"] {
            std::fs::write(folder.path().join(silent), "x").unwrap();
        }
        // An editor's way: a new file in place of the old one.
        std::fs::write(folder.path().join("src/deep/new"), "x").unwrap();
        std::fs::rename(folder.path().join("src/deep/new"), folder.path().join("src/deep/lib.rs")).unwrap();
        assert!(is_heard(&mut changes).await);
        assert!(changes.heard.try_recv().is_err(), "one change is one");
        std::fs::create_dir(folder.path().join("tests")).unwrap();
        assert!(is_heard(&mut changes).await);
        std::fs::write(folder.path().join("tests/frames.rs"), "x").unwrap();
        assert!(is_heard(&mut changes).await, "in a folder that was not there before");
    }

    #[tokio::test]
    async fn a_module_that_lies_elsewhere_is_looked_at_alone() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let module = elsewhere.path().join("m.wasm");
        let mut changes = Changes::of(&folder.path().join("pinion.toml"), std::iter::once(&*module)).unwrap();
        std::fs::write(elsewhere.path().join("other.wasm"), "x").unwrap();
        assert!(!is_heard(&mut changes).await);
        std::fs::write(&module, "x").unwrap();
        assert!(is_heard(&mut changes).await);
    }
}
