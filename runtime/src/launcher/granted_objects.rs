//! The keys and models that chains are granted, loaded for all of a tenant's chains.
//!
//! ```text
//!   control thread   a change needs one --opened, or prepared by the builder--> loaded, as long as the change or a chain in force needs it
//!   launcher         a chain that comes into force takes it for its stages
//! ```
//!
//! Each is loaded once for each tenant. So session tickets of one version of a chain hold for the next, and instances share a model. The tenant
//! is charged with the model's memory, from before it is read until the last instance with it has ended.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinion_control::model::{self, Chain, DesiredState, Digest, Key, KeyName, ModelName, ObjectRef, Stage, TenantName};
use pinion_control::node::{Refusal, UploadedBytes};
use pinion_inference::Model;
use pinion_keys::ServerKey;

use crate::containment::contained;
use crate::fwp::inference::{LoadedModel, ModelGrants};
use crate::fwp::keys::KeyGrants;
use crate::tenants::accounts::{Accounts, OverLimit};

/// What identifies something that a tenant has uploaded.
type Uploaded = (TenantName, Digest);

/// The loaded keys and models; see the module.
pub struct GrantedObjects {
    accounts: Arc<Accounts>,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    keys: Objects<ServerKey>,
    models: Objects<LoadedModel>,
    loads: u64,
}

type Objects<T> = HashMap<Uploaded, (LoadNumber, Arc<T>)>;

/// Tells an object from others of the same name, and from the same one that was loaded at another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoadNumber(u64);

/// What a stage of a chain is granted, in the order in which the chain names it.
#[derive(Debug, Clone, Default)]
pub struct StageGrants {
    /// The keys that it may have handshakes signed with.
    pub keys: KeyGrants,
    /// The models that it may run.
    pub models: ModelGrants,
    /// What they are, whatever they are called.
    numbers: Vec<LoadNumber>,
}

impl PartialEq for StageGrants {
    /// Compares the objects: one of the same name may be another.
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

/// Keys and models that chains need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantNeeds {
    keys: BTreeSet<Uploaded>,
    models: BTreeSet<Uploaded>,
}

impl GrantNeeds {
    /// Adds what a chain of the state needs.
    pub fn add_chain(&mut self, state: &DesiredState, chain: &Chain) {
        self.keys.extend(keys_of(state, chain).map(|key| (key.tenant.clone(), key.digest)));
        self.models.extend(models_of(state, chain).map(|model| (model.tenant.clone(), model.digest)));
    }

    /// Adds what others need.
    pub fn add(&mut self, other: &Self) {
        self.keys.extend(other.keys.iter().cloned());
        self.models.extend(other.models.iter().cloned());
    }

    /// Returns whether some of this is needed by others, too.
    #[must_use]
    pub fn shares_some(&self, other: &Self) -> bool {
        !self.keys.is_disjoint(&other.keys) || !self.models.is_disjoint(&other.models)
    }

    /// Returns the digests of the models.
    #[must_use]
    pub fn models(&self) -> BTreeSet<Digest> {
        self.models.iter().map(|(_, digest)| *digest).collect()
    }
}

/// Returns the keys of a chain's stages that the state has.
fn keys_of<'s>(state: &'s DesiredState, chain: &'s Chain) -> impl Iterator<Item = &'s Key> {
    let names = chain.stages.iter().flat_map(|stage| &stage.keys);
    names.filter_map(|name| state.key(&chain.tenant, name)).map(|key| &**key)
}

/// Returns the models of a chain's stages that the state has.
fn models_of<'s>(state: &'s DesiredState, chain: &'s Chain) -> impl Iterator<Item = &'s model::Model> {
    let names = chain.stages.iter().flat_map(|stage| &stage.models);
    names.filter_map(|name| state.model(&chain.tenant, name)).map(|model| &**model)
}

impl GrantedObjects {
    /// Creates it without objects. What is loaded is charged to these accounts.
    #[must_use]
    pub fn new(accounts: Arc<Accounts>) -> Self {
        Self { accounts, loaded: Mutex::default() }
    }

    /// Returns whether all of these are loaded.
    #[must_use]
    pub fn has_all(&self, needs: &GrantNeeds) -> bool {
        let loaded = self.loaded();
        needs.keys.iter().all(|key| loaded.keys.contains_key(key))
            && needs.models.iter().all(|model| loaded.models.contains_key(model))
    }

    /// Loads what a chain of the state needs and is not loaded, and charges its tenant. `form_of` returns a model's form. Returns whether
    /// something was loaded.
    ///
    /// # Errors
    /// Why something cannot be loaded, with its name.
    pub fn load(
        &self,
        state: &DesiredState,
        chain: &Chain,
        uploads: &dyn UploadedBytes,
        form_of: impl Fn(&model::Model) -> Result<Vec<u8>, Refusal>,
    ) -> Result<bool, Refusal> {
        let mut has_loaded = false;
        for key in keys_of(state, chain) {
            let uploaded = (key.tenant.clone(), key.digest);
            if !self.loaded().keys.contains_key(&uploaded) {
                let opened = ServerKey::new(uploads.key(key).map_err(Refusal::Failed)?);
                self.loaded().add(|loaded| &mut loaded.keys, uploaded, opened);
                has_loaded = true;
            }
        }
        for model in models_of(state, chain) {
            let uploaded = (model.tenant.clone(), model.digest);
            if !self.loaded().models.contains_key(&uploaded) {
                let read = self.read_model(model, &form_of)?;
                self.loaded().add(|loaded| &mut loaded.models, uploaded, read);
                has_loaded = true;
            }
        }
        Ok(has_loaded)
    }

    /// Returns what each stage of a chain is granted.
    ///
    /// # Errors
    /// A sentence for the chain's tenant, if something is not loaded.
    pub fn of_chain(&self, state: &DesiredState, chain: &Chain) -> Result<Vec<StageGrants>, String> {
        let (loaded, tenant) = (self.loaded(), &chain.tenant);
        let of_stage = |stage: &Stage| {
            let mut numbers = Vec::new();
            let digest = |name: &KeyName| state.key(tenant, name).map(|key| key.digest);
            let keys = taken("key", tenant, &stage.keys, digest, &loaded.keys, &mut numbers)?;
            let digest = |name: &ModelName| state.model(tenant, name).map(|model| model.digest);
            let models = taken("model", tenant, &stage.models, digest, &loaded.models, &mut numbers)?;
            Ok(StageGrants { keys: KeyGrants::new(keys), models: ModelGrants::new(models), numbers })
        };
        chain.stages.iter().map(of_stage).collect()
    }

    /// Unloads all but these. Instances keep what they were granted.
    pub fn retain(&self, needs: &GrantNeeds) {
        let mut loaded = self.loaded();
        loaded.keys.retain(|key, _| needs.keys.contains(key));
        loaded.models.retain(|model, _| needs.models.contains(model));
    }

    fn read_model(
        &self,
        model: &model::Model,
        form_of: impl Fn(&model::Model) -> Result<Vec<u8>, Refusal>,
    ) -> Result<LoadedModel, Refusal> {
        let object = ObjectRef::from(model);
        let over = |OverLimit { limit_kib, wanted_kib, .. }: OverLimit| {
            Refusal::Exhausted(format!(
                "{object} takes {wanted_kib} KiB of memory, and the tenant would have more than the {limit_kib} KiB that the node grants it: \
                 delete chains, keep fewer instances ready (cache_min, cache_max), or ask the operator to raise the tenant's memory_mib"
            ))
        };
        // What it takes is known better after each step.
        let mut charge = self.accounts.charge(&model.tenant, model.size_bytes).map_err(over)?;
        let form = form_of(model).map_err(|refusal| match refusal {
            Refusal::Invalid(reason) => Refusal::Invalid(format!("{object}: {reason}")),
            Refusal::Failed(reason) => Refusal::Failed(format!("{object}: {reason}")),
            other => other,
        })?;
        charge.resize(form.len() as u64).map_err(over)?;
        // The library may panic.
        let failed = |reason: &dyn Display| Refusal::Failed(format!("{object} does not load: {reason}"));
        let loaded = match contained(|| Model::load(&form)) {
            Ok(loaded) => loaded.map_err(|error| failed(&error))?,
            Err(panicked) => return Err(failed(&panicked)),
        };
        charge.resize(loaded.footprint().loaded_bytes).map_err(over)?;
        Ok(LoadedModel::new(loaded, charge))
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loaded {
    /// Adds an object, unless another change has loaded it meanwhile: that one's tickets are those that count.
    fn add<T>(&mut self, objects: impl Fn(&mut Self) -> &mut Objects<T>, uploaded: Uploaded, object: T) {
        self.loads += 1;
        let number = LoadNumber(self.loads);
        objects(self).entry(uploaded).or_insert_with(|| (number, Arc::new(object)));
    }
}

/// Returns objects by the names that a stage has for them, and adds their numbers.
fn taken<N: Display, T>(
    what: &str,
    tenant: &TenantName,
    names: &[N],
    digest: impl Fn(&N) -> Option<Digest>,
    objects: &Objects<T>,
    numbers: &mut Vec<LoadNumber>,
) -> Result<Vec<(String, Arc<T>)>, String> {
    let object = |name: &N| {
        let found = digest(name).and_then(|digest| objects.get(&(tenant.clone(), digest)));
        let (number, object) = found.ok_or_else(|| format!("its {what} {name} is not loaded"))?;
        numbers.push(*number);
        Ok((name.to_string(), Arc::clone(object)))
    };
    names.iter().map(object).collect()
}

/// Keys for tests.
#[cfg(test)]
pub(super) mod fake {
    use pinion_control::model::{Change, Files, Model, Module};
    use pinion_keys::PrivateKey;

    use super::*;

    const PEMS: [&[u8]; 2] = [
        include_bytes!("../../../control/keys/tests/data/p256.pem"),
        include_bytes!("../../../control/keys/tests/data/ed25519.pem"),
    ];

    /// The uploads of a node to which two keys were uploaded.
    pub(in crate::launcher) struct Uploads;

    impl UploadedBytes for Uploads {
        fn wasm(&self, _: &Module) -> Result<Vec<u8>, String> {
            unreachable!("no test builds templates of these")
        }

        fn files(&self, _: &Files) -> Result<Vec<u8>, String> {
            unreachable!("no stage has files")
        }

        fn key(&self, key: &Key) -> Result<PrivateKey, String> {
            let mut keys = PEMS.into_iter().map(|pem| PrivateKey::from_pem(pem).unwrap());
            let found = keys.find(|found| found.public_digest() == *key.digest.as_bytes());
            found.ok_or_else(|| "the store has lost it".to_owned())
        }

        fn model(&self, _: &Model) -> Result<Vec<u8>, String> {
            unreachable!("no stage has models")
        }
    }

    /// Returns the digest of one of two keys that the node has.
    pub(in crate::launcher) fn digest(number: usize) -> Digest {
        Digest::from_bytes(PrivateKey::from_pem(PEMS[number]).unwrap().public_digest())
    }

    /// Returns a state of a tenant with these chains, each of one stage that is granted the key `site` with this digest.
    pub(in crate::launcher) fn state(chains: &[&str], digest: Digest) -> DesiredState {
        let (tenant, module) = ("t".parse::<TenantName>().unwrap(), "m".parse().unwrap());
        let chain = |name: &&str| {
            let stage = Stage { keys: vec!["site".parse().unwrap()], ..Stage::new("m".parse().unwrap(), Vec::new()) };
            Chain::new(tenant.clone(), name.parse().unwrap(), vec![stage])
        };
        let algorithm = "any".to_owned();
        let change = Change {
            modules: vec![Module { tenant: tenant.clone(), name: module, digest: Digest::of(b"m"), size_bytes: 1 }],
            keys: vec![Key { tenant: tenant.clone(), name: "site".parse().unwrap(), digest, algorithm }],
            chains: chains.iter().map(chain).collect(),
            ..Change::default()
        };
        DesiredState::default().apply(&change).unwrap().state
    }

    /// Loads the keys of a chain.
    pub(in crate::launcher) fn load(
        granted: &GrantedObjects,
        state: &DesiredState,
        chain: &Chain,
    ) -> Result<bool, Refusal> {
        granted.load(state, chain, &Uploads, |_| unreachable!("no stage has models"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use pinion_builder::model::import;
    use pinion_control::model::Change;

    use super::fake::{digest, load, state};
    use super::*;
    use crate::tenants::accounts::TenantLimits;

    fn needs(state: &DesiredState, chain: &Chain) -> GrantNeeds {
        let mut needs = GrantNeeds::default();
        needs.add_chain(state, chain);
        needs
    }

    fn chains(state: &DesiredState) -> Vec<&Chain> {
        state.chains().values().map(|chain| &**chain).collect()
    }

    #[test]
    fn all_chains_and_later_versions_of_them_share_a_key_and_its_tickets() {
        let (granted, state) = (GrantedObjects::new(Arc::default()), state(&["a", "b"], digest(0)));
        let [a, b] = chains(&state)[..] else { panic!("there are two chains") };
        assert_eq!(granted.of_chain(&state, a).err().as_deref(), Some("its key site is not loaded"));
        assert!(!granted.has_all(&needs(&state, a)));
        assert_eq!(load(&granted, &state, a), Ok(true));
        assert_eq!(load(&granted, &state, b), Ok(false), "it is there");
        let [of_a, of_b] = [a, b].map(|chain| granted.of_chain(&state, chain).unwrap());
        assert!(of_a == of_b);
        assert!(!of_a[0].keys.is_empty());
        // As when a chain is deleted.
        granted.retain(&needs(&state, b));
        assert!(granted.of_chain(&state, b).unwrap() == of_b);
        granted.retain(&GrantNeeds::default());
        assert!(granted.of_chain(&state, b).is_err());
        load(&granted, &state, b).unwrap();
        assert!(granted.of_chain(&state, b).unwrap() != of_b, "its tickets are new");
    }

    /// The form of the sample `classifier`'s model.
    static FORM: LazyLock<Vec<u8>> =
        LazyLock::new(|| import(include_bytes!("../../../samples/classifier/model/cifar.onnx")).unwrap());

    /// Returns a state of a tenant with these chains, each of one stage that is granted the model `net`.
    fn state_with_model(chains: &[&str]) -> DesiredState {
        let with_key = state(chains, digest(0));
        let granted = |chain: &Arc<Chain>| {
            let stage = Stage { keys: Vec::new(), models: vec!["net".parse().unwrap()], ..chain.stages[0].clone() };
            Chain { stages: vec![stage], ..Chain::clone(chain) }
        };
        let change = Change {
            models: vec![model::Model {
                tenant: "t".parse().unwrap(),
                name: "net".parse().unwrap(),
                digest: Digest::of(b"onnx"),
                size_bytes: 1024,
            }],
            chains: with_key.chains().values().map(granted).collect(),
            ..Change::default()
        };
        with_key.apply(&change).unwrap().state
    }

    /// Returns an account registry in which each tenant has so much memory, and the objects charged to it.
    fn granted_of(limit_bytes: u64) -> (Arc<Accounts>, GrantedObjects) {
        let limits = TenantLimits { default_bytes: Some(limit_bytes), ..TenantLimits::default() };
        let accounts = Arc::new(Accounts::new(limits));
        (Arc::clone(&accounts), GrantedObjects::new(accounts))
    }

    fn load_model(granted: &GrantedObjects, state: &DesiredState, chain: &Chain) -> Result<bool, Refusal> {
        granted.load(state, chain, &fake::Uploads, |_| Ok(FORM.clone()))
    }

    #[test]
    fn a_model_is_charged_to_its_tenant_once_until_the_last_instance_with_it_is_gone() {
        let loaded_kib = Model::load(&FORM).unwrap().footprint().loaded_bytes / 1024;
        let (accounts, granted) = granted_of(1 << 30);
        let state = state_with_model(&["a", "b"]);
        let used_kib = || accounts.of_tenants().first().map(|(_, usage)| usage.used_kib);
        let [a, b] = chains(&state)[..] else { panic!("there are two chains") };
        assert_eq!((load_model(&granted, &state, a), used_kib()), (Ok(true), Some(loaded_kib)));
        assert_eq!((load_model(&granted, &state, b), used_kib()), (Ok(false), Some(loaded_kib)));
        let of_instance = granted.of_chain(&state, b).unwrap();
        granted.retain(&needs(&state, b));
        granted.retain(&GrantNeeds::default());
        assert_eq!(used_kib(), Some(loaded_kib), "an instance has it");
        drop(of_instance);
        assert_eq!(used_kib(), None);
    }

    #[test]
    fn a_model_for_which_its_tenant_has_no_memory_is_refused_with_the_limit_and_charges_nothing() {
        let loaded_bytes = Model::load(&FORM).unwrap().footprint().loaded_bytes;
        let state = state_with_model(&["a"]);
        // Refused as it is uploaded, as its form, and as it is loaded.
        for limit_bytes in [512, 2048, loaded_bytes - 1024] {
            let (accounts, granted) = granted_of(limit_bytes);
            let refused = load_model(&granted, &state, chains(&state)[0]);
            let limit = format!("more than the {} KiB that the node grants it", limit_bytes / 1024);
            assert!(matches!(&refused, Err(Refusal::Exhausted(sentence)) if sentence.contains(&limit)), "{refused:?}");
            assert!(accounts.of_tenants().is_empty() && !granted.has_all(&needs(&state, chains(&state)[0])));
        }
    }

    #[test]
    fn a_key_that_cannot_be_read_keeps_its_chain_out_of_force_with_the_reason() {
        let (granted, state) = (GrantedObjects::new(Arc::default()), state(&["a"], Digest::of(b"a key that is lost")));
        assert_eq!(load(&granted, &state, chains(&state)[0]), Err(Refusal::Failed("the store has lost it".to_owned())));
        assert!(granted.of_chain(&state, chains(&state)[0]).is_err());
    }
}
