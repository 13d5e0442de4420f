//! One object of any kind, as a revision and the store have it.

use std::sync::Arc;

use super::{Chain, Change, DesiredState, Digest, Key, Labelled, Model, Module, ObjectRef, Rule, Tenant, TenantName};

/// An object of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A tenant's terms.
    Tenant(Arc<Tenant>),
    /// A module.
    Module(Arc<Module>),
    /// A key.
    Key(Arc<Key>),
    /// A model.
    Model(Arc<Model>),
    /// A chain.
    Chain(Arc<Chain>),
    /// A rule.
    Rule(Arc<Rule>),
}

impl Object {
    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> ObjectRef {
        match self {
            Object::Tenant(tenant) => (&**tenant).into(),
            Object::Module(module) => (&**module).into(),
            Object::Key(key) => (&**key).into(),
            Object::Model(model) => (&**model).into(),
            Object::Chain(chain) => (&**chain).into(),
            Object::Rule(rule) => (&**rule).into(),
        }
    }

    /// Returns the uploads without which it cannot be, with their sizes in bytes. Of a key, its sealed form has no size here.
    #[must_use]
    pub fn uploads(&self) -> Vec<(Digest, u64)> {
        match self {
            Object::Tenant(_) | Object::Rule(_) => Vec::new(),
            Object::Module(module) => vec![(module.digest, module.size_bytes)],
            Object::Key(key) => vec![(key.digest, 0)],
            Object::Model(model) => vec![(model.digest, model.size_bytes)],
            Object::Chain(chain) => chain
                .stages
                .iter()
                .filter_map(|stage| stage.files)
                .map(|files| (files.digest, files.size_bytes))
                .collect(),
        }
    }

    /// Returns the uploads without which it cannot be, with the tenant that has to have uploaded them.
    pub fn uploads_of_tenant(&self) -> impl Iterator<Item = (TenantName, Digest)> + use<> {
        let tenant = self.name().tenant().clone();
        self.uploads().into_iter().map(move |(digest, _)| (tenant.clone(), digest))
    }
}

impl Change {
    /// Adds an object to create or update, with its label.
    pub fn set(&mut self, labelled: &Labelled<Object>) {
        if let Some(label) = &labelled.label {
            self.labels.insert(labelled.name(), label.clone());
        }
        match &labelled.object {
            Object::Tenant(tenant) => self.tenants.push(Tenant::clone(tenant)),
            Object::Module(module) => self.modules.push(Module::clone(module)),
            Object::Key(key) => self.keys.push(Key::clone(key)),
            Object::Model(model) => self.models.push(Model::clone(model)),
            Object::Chain(chain) => self.chains.push(Chain::clone(chain)),
            Object::Rule(rule) => self.rules.push(Rule::clone(rule)),
        }
    }
}

impl DesiredState {
    /// Returns the object of this name.
    #[must_use]
    pub fn object(&self, object: &ObjectRef) -> Option<Labelled<Object>> {
        let found = match object.clone() {
            ObjectRef::Tenant { name } => self.tenant(&name).cloned().map(Object::Tenant),
            ObjectRef::Module { tenant, name } => self.module(&tenant, &name).cloned().map(Object::Module),
            ObjectRef::Key { tenant, name } => self.key(&tenant, &name).cloned().map(Object::Key),
            ObjectRef::Model { tenant, name } => self.model(&tenant, &name).cloned().map(Object::Model),
            ObjectRef::Chain { tenant, name } => self.chain(&tenant, &name).cloned().map(Object::Chain),
            ObjectRef::Rule { tenant, name } => self.rules().get(&(tenant, name)).cloned().map(Object::Rule),
        };
        found.map(|object| self.with_label(object))
    }

    fn with_label(&self, object: Object) -> Labelled<Object> {
        let label = self.labels().get(&object.name()).cloned();
        Labelled { object, label }
    }

    /// Returns all objects, in the order in which a change names them.
    pub fn objects(&self) -> impl Iterator<Item = Labelled<Object>> + '_ {
        let tenants = self.tenants().values().cloned().map(Object::Tenant);
        let modules = self.modules().values().cloned().map(Object::Module);
        let keys = self.keys().values().cloned().map(Object::Key);
        let models = self.models().values().cloned().map(Object::Model);
        let chains = self.chains().values().cloned().map(Object::Chain);
        let rules = self.rules().values().cloned().map(Object::Rule);
        let objects = tenants.chain(modules).chain(keys).chain(models).chain(chains).chain(rules);
        objects.map(|object| self.with_label(object))
    }

    /// Returns a tenant's terms, if it has any of its own, and its objects, in the order in which a change names them.
    #[must_use]
    pub fn objects_of(&self, tenant: &TenantName) -> Vec<Labelled<Object>> {
        let mut objects: Vec<Object> = self.tenant(tenant).cloned().map(Object::Tenant).into_iter().collect();
        objects.extend(owned(self.modules().iter(), tenant).map(Object::Module));
        objects.extend(owned(self.keys().iter(), tenant).map(Object::Key));
        objects.extend(owned(self.models().iter(), tenant).map(Object::Model));
        objects.extend(owned(self.chains().iter(), tenant).map(Object::Chain));
        objects.extend(owned(self.rules().iter(), tenant).map(Object::Rule));
        objects.into_iter().map(|object| self.with_label(object)).collect()
    }
}

/// Returns those objects that a tenant owns.
fn owned<'s, N: 's, T: 's>(
    all: impl Iterator<Item = (&'s (TenantName, N), &'s Arc<T>)>,
    tenant: &TenantName,
) -> impl Iterator<Item = Arc<T>> {
    all.filter(move |((of, _), _)| of == tenant).map(|(_, object)| Arc::clone(object))
}
