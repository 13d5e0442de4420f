//! Templates that are loaded for all workers.
#![forbid(unsafe_code)]

use std::sync::Arc;

use pinion_builder::build::{Built, build};
use pinion_builder::initialise;
use pinion_control::model::{Digest, TenantName};
use pinion_runtime::fwp::imports;
use pinion_runtime::launcher::{LoadError, LoadedTemplate, LoadedTemplates};
use pinion_runtime::templates::artifacts::{Artifacts, TemplateKey, Wishes};
use pinion_runtime::templates::bundles::Bundles;
use pinion_runtime::templates::derived::Derived;
use pinion_runtime::templates::engine::{Reset, engine};
use pinion_runtime::tenants::accounts::{Accounts, TenantLimits};

const ECHO: &str = include_str!("support/echo.wat");
const WORKERS: usize = 2;
const WISHES: Wishes<'_> = Wishes {
    tenant: "demo",
    config: b"",
    files: None,
    memory_bytes_max: 1 << 20,
    fields: Vec::new(),
    keys: Vec::new(),
    models: Vec::new(),
};

fn built() -> Built {
    let wishes = initialise::Wishes {
        config: Arc::new([]),
        files: None,
        memory_bytes_max: WISHES.memory_bytes_max,
        fields: Arc::new([]),
        keys: Arc::new([]),
        models: Arc::new([]),
    };
    build(&wat::parse_str(ECHO).unwrap(), &wishes, |_| ()).unwrap()
}

/// A folder with the template, and what loads templates from there.
struct House {
    artifacts: Arc<Artifacts>,
    accounts: Arc<Accounts>,
    templates: LoadedTemplates,
    tenant: TenantName,
    key: TemplateKey,
    code_bytes: u64,
    _folder: tempfile::TempDir,
}

impl House {
    fn new(tenant_memory_bytes: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engines: Vec<_> = (0..WORKERS).map(|_| engine(1, Reset::Unmap).unwrap()).collect();
        let derived = Arc::new(Derived::new(folder.path()));
        let artifacts = Artifacts::open(folder.path().join("templates"), &engines[0], Arc::clone(&derived));
        let artifacts = Arc::new(artifacts.unwrap());
        let bundles = Arc::new(Bundles::open(folder.path().join("files"), derived).unwrap());
        let limits = TenantLimits { default_bytes: tenant_memory_bytes, ..TenantLimits::default() };
        let accounts = Arc::new(Accounts::new(limits));
        let linkers = engines.iter().map(|engine| imports::linker(engine).unwrap()).collect();
        let key = TemplateKey::new(Digest::of(ECHO.as_bytes()), &WISHES);
        let Built { facts, artifact } = built();
        artifacts.keep(&key, &facts, &artifact).unwrap();
        Self {
            templates: LoadedTemplates::new(Arc::clone(&artifacts), bundles, Arc::clone(&accounts), linkers),
            artifacts,
            accounts,
            tenant: WISHES.tenant.parse().unwrap(),
            key,
            code_bytes: artifact.len() as u64,
            _folder: folder,
        }
    }

    fn load(&self) -> Result<Arc<LoadedTemplate>, LoadError> {
        self.templates.load(&self.key, &self.tenant, None)
    }

    fn charged_kib(&self) -> Option<u64> {
        Some(self.accounts.of_tenants().first()?.1.used_kib)
    }
}

#[test]
fn a_template_is_read_once_for_all_workers_and_loaded_as_long_as_something_has_it() {
    let house = House::new(None);
    assert!(house.templates.get(&house.key).is_none());
    let loaded = house.load().unwrap();
    house.artifacts.retain(|_| false).unwrap();
    let again = house.load().expect("its files are not read again");
    assert!(Arc::ptr_eq(&loaded, &again) && house.templates.get(&house.key).is_some());
    assert_eq!(house.templates.link(&loaded, &WISHES).unwrap().len(), WORKERS);
    drop((loaded, again));
    assert!(house.templates.get(&house.key).is_none() && house.load().is_err());
}

#[test]
fn a_template_is_charged_to_its_tenant_until_what_was_made_of_it_has_ended() {
    let house = House::new(None);
    let loaded = house.load().unwrap();
    let charged_kib = Some(house.code_bytes / 1024);
    assert_eq!(house.charged_kib(), charged_kib);
    let linked = house.templates.link(&loaded, &WISHES).unwrap();
    drop(loaded);
    assert_eq!(house.charged_kib(), charged_kib);
    drop(linked);
    assert_eq!(house.charged_kib(), None);
}

#[test]
fn a_template_that_its_tenant_has_too_little_memory_for_is_not_loaded() {
    let (least, house) = (House::new(None).code_bytes, House::new(Some(4096)));
    let refused = house.load().err().expect("it is larger than 4 KiB").to_string();
    let expected = format!("its code and files take {} KiB of memory", least.div_ceil(1024));
    assert!(refused.starts_with(&expected) && refused.contains("4 KiB that the node grants"), "{refused}");
    assert_eq!(house.charged_kib(), None);
}
