//! Watches a function's files for changes, and waits for an interrupt of the command.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::folder_of;

/// Editors write a file in several steps. A change is complete when nothing has happened for this long.
const QUIET: Duration = Duration::from_millis(100);
/// The folder in which cargo builds.
const TARGET: &str = "target";

/// Watched files.
pub(super) struct Changes {
    watcher: RecommendedWatcher,
    folder: PathBuf,
    watched: BTreeSet<PathBuf>,
    heard: mpsc::UnboundedReceiver<PathBuf>,
    modules: BTreeSet<PathBuf>,
    /// Build products within the folder.
    built: BTreeSet<PathBuf>,
}

impl Changes {
    /// Watches the files beside a manifest and below, except for build products and hidden files, and these modules,
    /// wherever they are. `built` are modules within the folder that its Makefile makes; everything in their folders
    /// counts as a build product.
    pub(super) fn of<'m>(
        manifest: &Path,
        modules: impl Iterator<Item = &'m Path>,
        built: &[PathBuf],
    ) -> anyhow::Result<Self> {
        let folder = folder_of(manifest);
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let (tell, heard) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            if matches!(event.kind, EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_)) {
                // Fails only when the receiver was dropped.
                event.paths.into_iter().for_each(|path| _ = tell.send(path));
            }
        })?;
        // A module that is not built yet does not exist, but its folder may.
        let absolute = |module: &Path| Some(folder_of(module).canonicalize().ok()?.join(module.file_name()?));
        let modules: BTreeSet<PathBuf> = modules.filter_map(absolute).collect();
        // The folder of such a module need not exist yet.
        let made = |module: &PathBuf| -> PathBuf {
            let names = |path: &Path| path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
            let folder: PathBuf = module.parent().map(names).unwrap_or_default();
            if folder.as_os_str().is_empty() { names(module) } else { folder }
        };
        let built = [TARGET, "Cargo.lock"].map(PathBuf::from).into_iter().chain(built.iter().map(made));
        let (watched, built) = (BTreeSet::new(), built.collect());
        let mut changes = Self { watcher, folder, watched, heard, modules, built };
        changes.watch_folders()?;
        let around: Vec<PathBuf> = changes.modules.iter().map(|module| folder_of(module).to_owned()).collect();
        around.into_iter().try_for_each(|folder| changes.watch(folder, RecursiveMode::NonRecursive))?;
        Ok(changes)
    }

    /// Watches each folder of the function that is not watched yet, except for build products, which would be thousands
    /// of folders.
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
        let is_built = self.built.iter().any(|built| within.starts_with(built));
        !is_built && parts.all(|part| !part.starts_with('.') && !part.ends_with('~'))
    }

    /// Waits until something has changed, and the change is complete.
    pub(super) async fn next(&mut self) -> anyhow::Result<()> {
        loop {
            let path = self.heard.recv().await.context("the file watcher has stopped")?;
            if self.is_source(&path) {
                break;
            }
        }
        while let Ok(Some(_)) = tokio::time::timeout(QUIET, self.heard.recv()).await {}
        self.watch_folders()
    }
}

/// An interrupt of the command: Ctrl-C, a hang-up, or a termination signal.
pub(super) struct Interrupt([Signal; 3]);

impl Interrupt {
    /// Installs the handlers. From now on these signals do not end the process.
    pub(super) fn expect() -> anyhow::Result<Self> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    /// Waits for an interrupt.
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
    async fn a_changed_source_is_reported_once_and_build_products_and_hidden_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("pinion.toml");
        for inner in ["src/deep", "target/release", ".git"] {
            std::fs::create_dir_all(folder.path().join(inner)).unwrap();
        }
        let mut changes = Changes::of(&manifest, std::iter::empty(), &[]).unwrap();
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
    async fn products_of_a_makefile_are_not_sources() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("out")).unwrap();
        let built = ["build/m.wasm", "./out/deep/n.wasm", "o.wasm"].map(PathBuf::from);
        let mut changes = Changes::of(&folder.path().join("pinion.toml"), std::iter::empty(), &built).unwrap();
        for made in ["build/test/frames", "build/m.wasm", "out/deep/n.wasm", "o.wasm"] {
            let made = folder.path().join(made);
            std::fs::create_dir_all(made.parent().unwrap()).unwrap();
            std::fs::write(made, "x").unwrap();
        }
        assert!(!is_heard(&mut changes).await);
        std::fs::write(folder.path().join("Makefile"), "x").unwrap();
        assert!(is_heard(&mut changes).await);
    }

    #[tokio::test]
    async fn of_a_module_in_another_folder_only_the_module_is_watched() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let module = elsewhere.path().join("m.wasm");
        let mut changes = Changes::of(&folder.path().join("pinion.toml"), std::iter::once(&*module), &[]).unwrap();
        std::fs::write(elsewhere.path().join("other.wasm"), "x").unwrap();
        assert!(!is_heard(&mut changes).await);
        std::fs::write(&module, "x").unwrap();
        assert!(is_heard(&mut changes).await);
    }
}
