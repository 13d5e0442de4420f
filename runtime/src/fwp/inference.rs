//! The models of a stage, and an FWP's contexts for runs of them: the node's side of wasi-nn ([`pinion_guest::calls::nn`]).
//!
//! A model is shared by all stages of a tenant that were granted it, and the tenant is charged with it once, until the last one is gone. A context
//! belongs to one FWP: it holds the inputs that the guest has set and the outputs of its last run. Their sizes are known from the model, and
//! charged to the FWP's memory when the context is made. A run is a job for the inference threads. It gets the inputs by weak reference, so that
//! those of an FWP that has ended do not wait with its job, where nothing is charged for them. Its outputs come back in the FWP's turn, so no
//! byte of a guest's memory is touched on another thread. What a run has meanwhile is charged to the tenant before it begins.

use std::sync::{Arc, Weak};

use pinion_guest::calls::nn::{Graphs, NnErrno, Tensor, TensorType};
use pinion_inference::{ElementType, Model, RunError, TensorInfo};

use super::{FwpContext, MemoryLimit};
use crate::tenants::accounts::{Charge, OverLimit};

/// The most contexts of an FWP. The interface has no call that frees one.
pub(crate) const CONTEXTS_MAX: usize = 8;

/// A model that is loaded for a tenant, which is charged with it as long as this lives.
#[derive(Debug)]
pub struct LoadedModel {
    model: Model,
    charge: Charge,
}

impl LoadedModel {
    /// Creates it with what its tenant was charged with for it.
    #[must_use]
    pub fn new(model: Model, charge: Charge) -> Self {
        Self { model, charge }
    }
}

/// A model and the name by which it was granted.
type Grant = (String, Arc<LoadedModel>);

/// The models that a stage is granted, with their names there. A guest knows each by its position.
#[derive(Debug, Clone, Default)]
pub struct ModelGrants(Option<Arc<[Grant]>>);

impl ModelGrants {
    /// Grants these models, in the order of their numbers.
    #[must_use]
    pub fn new(models: Vec<(String, Arc<LoadedModel>)>) -> Self {
        Self(Some(models).filter(|models| !models.is_empty()).map(Into::into))
    }

    /// Returns whether no model is granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn all(&self) -> &[Grant] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// What an FWP has of its models.
#[derive(Default)]
pub(crate) struct Inference {
    grants: ModelGrants,
    contexts: Vec<ExecutionContext>,
}

/// See the module.
struct ExecutionContext {
    loaded: Arc<LoadedModel>,
    /// None where the guest has set nothing.
    inputs: Vec<Option<Arc<Vec<u8>>>>,
    outputs: Vec<Vec<u8>>,
}

/// A run that is to be done on another thread.
pub(crate) struct Run {
    loaded: Arc<LoadedModel>,
    /// They belong to the context. Without it none asks for the outputs.
    inputs: Vec<Weak<Vec<u8>>>,
}

impl Run {
    /// Does it. May panic, as the library may.
    ///
    /// # Errors
    /// Its tenant's limit, if that leaves no memory for it; then it was not begun.
    pub(crate) fn work(self) -> Result<Result<Vec<Vec<u8>>, RunError>, OverLimit> {
        let LoadedModel { model, charge } = &*self.loaded;
        let _charge = charge.another(model.footprint().run_bytes)?;
        let inputs: Vec<Arc<Vec<u8>>> = self.inputs.iter().filter_map(Weak::upgrade).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(|input| input.as_slice()).collect();
        Ok(model.run(&inputs))
    }
}

impl Inference {
    pub(super) fn new(grants: ModelGrants) -> Self {
        Self { grants, contexts: Vec::new() }
    }

    fn graph(&self, name: &[u8]) -> Result<u32, NnErrno> {
        let position = self.grants.all().iter().position(|(granted, _)| granted.as_bytes() == name);
        position.map(|position| position as u32).ok_or(NnErrno::NotFound)
    }

    fn begin(&mut self, graph: u32, limit: &mut MemoryLimit) -> Result<u32, NnErrno> {
        let (_, loaded) = self.grants.all().get(graph as usize).ok_or(NnErrno::InvalidArgument)?;
        let (given, made) = (loaded.model.inputs(), loaded.model.outputs());
        let bytes: u64 = given.iter().chain(made).map(|tensor| tensor.bytes() as u64).sum();
        if self.contexts.len() >= CONTEXTS_MAX || !limit.add_tensors(bytes) {
            return Err(NnErrno::TooLarge);
        }
        let inputs = vec![None; given.len()];
        self.contexts.push(ExecutionContext { loaded: Arc::clone(loaded), inputs, outputs: Vec::new() });
        Ok(self.contexts.len() as u32 - 1)
    }

    fn input(&mut self, context: u32, index: u32, tensor: &Tensor) -> Result<&mut [u8], NnErrno> {
        let context = self.contexts.get_mut(context as usize).ok_or(NnErrno::InvalidArgument)?;
        let wanted = context.loaded.model.inputs().get(index as usize).ok_or(NnErrno::InvalidArgument)?;
        if !is_alike(tensor, wanted) {
            return Err(NnErrno::InvalidArgument);
        }
        let place = &mut context.inputs[index as usize];
        let input = place.get_or_insert_with(|| Arc::new(vec![0; wanted.bytes()]));
        // A run that is under way has a reference only while this FWP sleeps, so that nothing is copied.
        Ok(Arc::make_mut(input).as_mut_slice())
    }

    /// Returns the run of a context with the inputs that were set. Its outputs are gone until it is done.
    pub(crate) fn run(&mut self, context: u32) -> Result<Run, NnErrno> {
        let context = self.contexts.get_mut(context as usize).ok_or(NnErrno::InvalidArgument)?;
        context.outputs = Vec::new();
        let inputs = context.inputs.iter().map(|input| input.as_ref().map(Arc::downgrade));
        let inputs = inputs.collect::<Option<_>>().ok_or(NnErrno::InvalidArgument)?;
        Ok(Run { loaded: Arc::clone(&context.loaded), inputs })
    }

    /// Keeps the outputs of a context's run.
    pub(crate) fn done(&mut self, context: u32, outputs: Vec<Vec<u8>>) {
        if let Some(context) = self.contexts.get_mut(context as usize) {
            context.outputs = outputs;
        }
    }

    fn output(&self, context: u32, index: u32) -> Result<&[u8], NnErrno> {
        let context = self.contexts.get(context as usize).ok_or(NnErrno::InvalidArgument)?;
        context.outputs.get(index as usize).map(Vec::as_slice).ok_or(NnErrno::InvalidArgument)
    }
}

/// Returns whether a guest's tensor is what a model's input takes.
fn is_alike(given: &Tensor, wanted: &TensorInfo) -> bool {
    let element = match given.element {
        TensorType::F32 => ElementType::F32,
        TensorType::U8 => ElementType::U8,
        TensorType::I32 => ElementType::I32,
        TensorType::I64 => ElementType::I64,
    };
    element == wanted.element && given.dimensions() == wanted.shape && given.bytes == wanted.bytes()
}

impl Graphs for FwpContext {
    fn graph(&self, name: &[u8]) -> Result<u32, NnErrno> {
        self.granted.inference().map_err(|_| NnErrno::NotFound)?.graph(name)
    }

    fn begin(&mut self, graph: u32) -> Result<u32, NnErrno> {
        self.granted.inference_mut()?.begin(graph, &mut self.limit)
    }

    fn input(&mut self, context: u32, index: u32, tensor: &Tensor) -> Result<&mut [u8], NnErrno> {
        self.granted.inference_mut()?.input(context, index, tensor)
    }

    fn output(&self, context: u32, index: u32) -> Result<&[u8], NnErrno> {
        self.granted.inference()?.output(context, index)
    }
}

#[cfg(test)]
mod tests {
    use pinion_builder::model::import;

    use super::*;
    use crate::tenants::accounts::Accounts;

    #[test]
    fn inputs_of_a_run_that_waits_end_with_their_context() {
        let onnx = include_bytes!("../../../samples/classifier/model/cifar.onnx");
        let model = Model::load(&import(onnx).unwrap()).unwrap();
        let inputs = vec![Some(Arc::new(vec![0; model.inputs()[0].bytes()]))];
        let charge = Accounts::default().charge(&"t".parse().unwrap(), 0).unwrap();
        let loaded = Arc::new(LoadedModel::new(model, charge));
        let context = ExecutionContext { loaded, inputs, outputs: Vec::new() };
        let mut inference = Inference { grants: ModelGrants::default(), contexts: vec![context] };
        let [waits, works] = [(); 2].map(|()| inference.run(0).unwrap());
        assert!(works.work().unwrap().is_ok());
        drop(inference);
        assert!(waits.inputs[0].upgrade().is_none());
        assert!(waits.work().unwrap().is_err(), "it has no inputs");
    }
}
