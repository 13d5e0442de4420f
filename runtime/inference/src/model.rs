//! A model that is ready to run.
//!
//! It is shared, read-only, by all stages that were granted it. A run owns all else that it needs, and frees it when it ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tract_core::internal::{OutletId, Tensor, TypedModel};
use tract_core::plan;
use tract_core::prelude::{IntoTValue, TValue};

use crate::bounds::{self, IO_BYTES_MAX, Needs, OverBounds, RUN_TIME_MAX};
use crate::footprint::Footprint;
use crate::form;
use crate::tensor::{ElementType, TensorInfo};

/// Why a form can't be used as a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// It takes more than a model may.
    #[error(transparent)]
    Bounds(#[from] OverBounds),
    /// An input or an output has a type that models may not have there.
    #[error("its {0} has elements of the type {1}, and inputs and outputs may have f32, u8, i32 and i64")]
    ElementType(String, String),
    /// The form can't be written or read.
    #[error("{0}")]
    Form(String),
    /// The library can't prepare it for this processor.
    #[error("it can't be prepared: {0}")]
    Preparation(String),
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Another number of inputs.
    #[error("{given} inputs were given, and the model has {wanted}")]
    Inputs {
        /// How many were given.
        given: usize,
        /// How many it has.
        wanted: usize,
    },
    /// An input has another size.
    #[error("the input {input} takes {} bytes, not {given}", .input.bytes())]
    Size {
        /// The input.
        input: TensorInfo,
        /// How many bytes were given.
        given: usize,
    },
    /// It took too long.
    #[error("the run took more than {} s of processor time", RUN_TIME_MAX.as_secs())]
    Time,
    /// A step failed.
    #[error("the run failed: {0}")]
    Failed(String),
}

/// A model that is ready to run. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Model {
    plan: Arc<plan::SimplePlan<tract_core::internal::TypedFact, Box<dyn tract_core::internal::TypedOp>>>,
    inputs: Arc<[TensorInfo]>,
    outputs: Arc<[TensorInfo]>,
    needs: Needs,
    footprint: Footprint,
}

impl Model {
    /// Loads a form and prepares it for this processor. Takes milliseconds for each megabyte, so it is not for the data path.
    ///
    /// # Errors
    /// Why it can't be used.
    ///
    /// # Panics
    /// The library may panic. A form that the builder wrote was loaded and run there once.
    pub fn load(form: &[u8]) -> Result<Self, ModelError> {
        let (graph, names) = form::read(form)?;
        bounds::check(&graph)?;
        let infos = |outlets: &[OutletId], names: &[String]| -> Result<Arc<[TensorInfo]>, ModelError> {
            outlets.iter().zip(names).map(|(outlet, name)| info(&graph, *outlet, name)).collect()
        };
        let (inputs, outputs) = (infos(&graph.inputs, &names.inputs)?, infos(&graph.outputs, &names.outputs)?);
        let bytes: u64 = inputs.iter().chain(&*outputs).map(|tensor| tensor.bytes() as u64).sum();
        if bytes > IO_BYTES_MAX {
            let what = "bytes of inputs and outputs";
            return Err(OverBounds::Count { what, count: bytes, max: IO_BYTES_MAX }.into());
        }
        let unprepared = |error: tract_core::prelude::TractError| ModelError::Preparation(format!("{error:#}"));
        let graph = graph.into_optimized().map_err(unprepared)?;
        let needs = bounds::check(&graph)?;
        let plan = plan::SimplePlan::new(graph).map_err(unprepared)?;
        let footprint = Footprint::of(plan.model(), plan.order_without_consts(), needs.constant_bytes)?;
        Ok(Self { plan, inputs, outputs, needs, footprint })
    }

    /// Returns its inputs.
    #[must_use]
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    /// Returns its outputs.
    #[must_use]
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Returns what it takes.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Returns how much memory it and its runs have.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// Runs it on these inputs, the elements of each in the order of memory. Returns the outputs likewise. The sizes are checked before
    /// anything is allocated. A run takes at most [`bounds::RUN_BYTES_MAX`] and, but for its last step, [`RUN_TIME_MAX`].
    ///
    /// # Errors
    /// Why there is no result.
    ///
    /// # Panics
    /// The library may panic, so a caller contains this.
    pub fn run(&self, inputs: &[impl AsRef<[u8]>]) -> Result<Vec<Vec<u8>>, RunError> {
        if inputs.len() != self.inputs.len() {
            return Err(RunError::Inputs { given: inputs.len(), wanted: self.inputs.len() });
        }
        for (given, input) in inputs.iter().zip(&*self.inputs) {
            if given.as_ref().len() != input.bytes() {
                return Err(RunError::Size { input: input.clone(), given: given.as_ref().len() });
            }
        }
        let failed = |error: tract_core::prelude::TractError| {
            if error.downcast_ref::<TimeIsOver>().is_some() {
                RunError::Time
            } else {
                RunError::Failed(format!("{error:#}"))
            }
        };
        let values = inputs
            .iter()
            .zip(&*self.inputs)
            .map(|(given, input)| value(given.as_ref(), input))
            .collect::<Result<_, _>>();
        let time = RunTime::begin();
        let mut state = self.plan.spawn().map_err(failed)?;
        let outputs = state.run_plan_with_eval(values.map_err(failed)?, |context, state, node, inputs| {
            if time.is_over() {
                return Err(TimeIsOver.into());
            }
            plan::eval(context, state, node, inputs)
        });
        let outputs = outputs.map_err(failed)?;
        let sizes = self.outputs.iter().map(TensorInfo::bytes);
        outputs
            .iter()
            .zip(sizes)
            .map(|(output, bytes)| {
                let output = output.as_bytes();
                if output.len() == bytes {
                    Ok(output.to_vec())
                } else {
                    Err(RunError::Failed("an output has another size".to_owned()))
                }
            })
            .collect()
    }
}

/// Ends a run between two steps.
#[derive(Debug, thiserror::Error)]
#[error("its time is over")]
struct TimeIsOver;

fn info(graph: &TypedModel, outlet: OutletId, name: &str) -> Result<TensorInfo, ModelError> {
    let fact = graph.outlet_fact(outlet).map_err(|error| ModelError::Form(format!("{error:#}")))?;
    let element = ElementType::of(fact.datum_type)
        .ok_or_else(|| ModelError::ElementType(name.to_owned(), format!("{:?}", fact.datum_type)))?;
    let dims = fact.shape.iter().map(|dim| dim.to_i64().ok().and_then(|dim| u32::try_from(dim).ok()));
    let shape = dims.collect::<Option<_>>().ok_or_else(|| OverBounds::OpenShape(name.to_owned()))?;
    Ok(TensorInfo { name: name.to_owned(), element, shape })
}

fn value(bytes: &[u8], info: &TensorInfo) -> Result<TValue, tract_core::prelude::TractError> {
    let shape: Vec<usize> = info.shape.iter().map(|dim| *dim as usize).collect();
    let mut tensor = Tensor::zero_dt(info.element.datum(), &shape)?;
    tensor.as_bytes_mut().copy_from_slice(bytes);
    Ok(tensor.into_tvalue())
}

/// How long a run has taken.
struct RunTime {
    began: Instant,
    began_thread_time: Duration,
}

impl RunTime {
    fn begin() -> Self {
        Self { began: Instant::now(), began_thread_time: thread_time() }
    }

    /// Returns whether the run has had its processor time. That is never more than the time that passed, which is known without a call of the
    /// kernel.
    fn is_over(&self) -> bool {
        self.began.elapsed() > RUN_TIME_MAX && thread_time() - self.began_thread_time > RUN_TIME_MAX
    }
}

/// Returns the processor time of this thread. Other threads and processes do not advance it.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
