//! The keys that chains are granted, loaded for all of a tenant's chains.
//!
//! ```text
//!   control thread   a change needs a key --opened by the control plane--> loaded, as long as the change or a chain in force needs it
//!   launcher         a chain that comes into force takes it for its stages
//! ```
//!
//! A key is loaded once for each tenant, so that session tickets of one version of a chain hold for the next.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinion_control::model::{Chain, DesiredState, Digest, Key, Stage, TenantName};
use pinion_control::node::UploadedBytes;
use pinion_keys::ServerKey;

use crate::fwp::keys::KeyGrants;

/// What identifies something that a tenant has uploaded.
pub type Uploaded = (TenantName, Digest);

/// The loaded keys; see the module.
#[derive(Default)]
pub struct GrantedObjects {
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    keys: HashMap<Uploaded, (LoadNumber, Arc<ServerKey>)>,
    loads: u64,
}

/// Tells an object from others of the same name, and from the same one that was loaded at another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoadNumber(u64);

/// What a stage of a chain is granted, in the order in which the chain names it.
#[derive(Debug, Clone, Default)]
pub struct StageGrants {
    /// The keys that it may have handshakes signed with.
    pub keys: KeyGrants,
    /// What they are, whatever they are called.
    numbers: Vec<LoadNumber>,
}

impl PartialEq for StageGrants {
    /// Compares the objects: one of the same name may be another.
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

/// Returns the keys of a chain's stages that the state has.
fn keys_of<'s>(state: &'s DesiredState, chain: &'s Chain) -> impl Iterator<Item = &'s Arc<Key>> {
    let names = chain.stages.iter().flat_map(|stage| &stage.keys);
    names.filter_map(|name| state.key(&chain.tenant, name))
}

fn uploaded(key: &Key) -> Uploaded {
    (key.tenant.clone(), key.digest)
}

impl GrantedObjects {
    /// Returns the keys that a chain of the state needs.
    pub fn needs(state: &DesiredState, chain: &Chain) -> BTreeSet<Uploaded> {
        keys_of(state, chain).map(|key| uploaded(key)).collect()
    }

    /// Returns whether all of these are loaded.
    #[must_use]
    pub fn has_all(&self, needed: &BTreeSet<Uploaded>) -> bool {
        let loaded = self.loaded();
        needed.iter().all(|uploaded| loaded.keys.contains_key(uploaded))
    }

    /// Loads what a chain of the state needs and is not loaded. Returns whether something was loaded.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn load(&self, state: &DesiredState, chain: &Chain, uploads: &dyn UploadedBytes) -> Result<bool, String> {
        let mut has_loaded = false;
        for key in keys_of(state, chain) {
            if self.loaded().keys.contains_key(&uploaded(key)) {
                continue;
            }
            let opened = Arc::new(ServerKey::new(uploads.key(key)?));
            let mut loaded = self.loaded();
            loaded.loads += 1;
            let number = LoadNumber(loaded.loads);
            // Another change may have loaded it meanwhile: its tickets are those that count.
            loaded.keys.entry(uploaded(key)).or_insert((number, opened));
            has_loaded = true;
        }
        Ok(has_loaded)
    }

    /// Returns what each stage of a chain is granted.
    ///
    /// # Errors
    /// A sentence for the chain's tenant, if something is not loaded.
    pub fn of_chain(&self, state: &DesiredState, chain: &Chain) -> Result<Vec<StageGrants>, String> {
        let loaded = self.loaded();
        let of_stage = |stage: &Stage| {
            let (mut keys, mut numbers) = (Vec::new(), Vec::new());
            for name in &stage.keys {
                let key = state.key(&chain.tenant, name).and_then(|key| loaded.keys.get(&uploaded(key)));
                let (number, key) = key.ok_or_else(|| format!("its key {name} is not loaded"))?;
                keys.push((name.to_string(), Arc::clone(key)));
                numbers.push(*number);
            }
            Ok(StageGrants { keys: KeyGrants::new(keys), numbers })
        };
        chain.stages.iter().map(of_stage).collect()
    }

    /// Unloads all but these. Instances keep what they were granted.
    pub fn retain(&self, needed: &BTreeSet<Uploaded>) {
        self.loaded().keys.retain(|uploaded, _| needed.contains(uploaded));
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
}

#[cfg(test)]
mod tests {
    use super::fake::{Uploads, digest, state};
    use super::*;

    fn chains(state: &DesiredState) -> Vec<&Chain> {
        state.chains().values().map(|chain| &**chain).collect()
    }

    #[test]
    fn all_chains_and_later_versions_of_them_share_a_key_and_its_tickets() {
        let (granted, state) = (GrantedObjects::default(), state(&["a", "b"], digest(0)));
        let [a, b] = chains(&state)[..] else { panic!("there are two chains") };
        assert_eq!(granted.of_chain(&state, a).err().as_deref(), Some("its key site is not loaded"));
        assert!(!granted.has_all(&GrantedObjects::needs(&state, a)));
        assert_eq!(granted.load(&state, a, &Uploads), Ok(true));
        assert_eq!(granted.load(&state, b, &Uploads), Ok(false), "it is there");
        let [of_a, of_b] = [a, b].map(|chain| granted.of_chain(&state, chain).unwrap());
        assert!(of_a == of_b);
        assert!(!of_a[0].keys.is_empty());
        // As when a chain is deleted.
        granted.retain(&GrantedObjects::needs(&state, b));
        assert!(granted.of_chain(&state, b).unwrap() == of_b);
        granted.retain(&BTreeSet::new());
        assert!(granted.of_chain(&state, b).is_err());
        granted.load(&state, b, &Uploads).unwrap();
        assert!(granted.of_chain(&state, b).unwrap() != of_b, "its tickets are new");
    }

    #[test]
    fn a_key_that_cannot_be_read_keeps_its_chain_out_of_force_with_the_reason() {
        let (granted, state) = (GrantedObjects::default(), state(&["a"], Digest::of(b"a key that is lost")));
        assert_eq!(granted.load(&state, chains(&state)[0], &Uploads), Err("the store has lost it".to_owned()));
        assert!(granted.of_chain(&state, chains(&state)[0]).is_err());
    }
}
