//! Models give the results of onnxruntime, to 1e-4, on random inputs.
//!
//! `models.py` makes models and inputs, and runs them. It writes a folder for each, with the model, its inputs and its outputs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pinion_builder::model::import;
use pinion_inference::{ElementType, Model};

/// How far results may be apart: absolutely where they are below one, else relatively.
const TOLERANCE: f64 = 1e-4;
/// How many cases the program makes.
const CASES: usize = 37;

/// The Python that has onnxruntime, as `tests/setup/python-tools.sh` names it.
fn python() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache"))).expect("there is a home directory");
    cache.join("pinion/python-2/bin/python3")
}

fn elements(bytes: &[u8], element: ElementType) -> Vec<f64> {
    let numbers = bytes.chunks_exact(element.bytes());
    numbers
        .map(|number| match element {
            ElementType::U8 => number[0].into(),
            ElementType::F32 => f32::from_le_bytes(number.try_into().unwrap()).into(),
            ElementType::I32 => i32::from_le_bytes(number.try_into().unwrap()).into(),
            ElementType::I64 => i64::from_le_bytes(number.try_into().unwrap()) as f64,
        })
        .collect()
}

/// Returns what differs between a case's outputs and ours.
fn difference(case: &Path) -> Option<String> {
    let read = |name: String| fs::read(case.join(name)).unwrap();
    let form = match import(&read("model.onnx".to_owned())) {
        Ok(form) => form,
        Err(refused) => return Some(format!("it is refused: {refused}")),
    };
    let model = Model::load(&form).unwrap();
    let inputs: Vec<Vec<u8>> = (0..model.inputs().len()).map(|index| read(format!("input-{index}"))).collect();
    let outputs = match model.run(&inputs) {
        Ok(outputs) => outputs,
        Err(error) => return Some(error.to_string()),
    };
    for (index, (output, info)) in outputs.iter().zip(model.outputs()).enumerate() {
        let expected = elements(&read(format!("output-{index}")), info.element);
        let given = elements(output, info.element);
        if expected.len() != given.len() {
            return Some(format!("{info} has {} elements, not {}", given.len(), expected.len()));
        }
        let mut distances =
            expected.iter().zip(&given).map(|(expected, given)| (expected - given).abs() / expected.abs().max(1.0));
        // A number that is none is never close.
        if let Some(far) = distances.find(|distance| distance.is_nan() || *distance > TOLERANCE) {
            return Some(format!("{info} is {far:e} away"));
        }
    }
    None
}

#[test]
fn models_give_the_results_of_onnxruntime() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(python())
        .arg(here.join("tests/oracle/models.py"))
        .arg(here.join("../../samples/classifier"))
        .arg(folder.path())
        .status()
        .expect("Python with onnxruntime can be run: `make install-test` installs it");
    assert!(status.success(), "models.py has failed");
    let mut cases: Vec<PathBuf> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert_eq!(cases.len(), CASES);
    let differ =
        cases.iter().filter_map(|case| Some(format!("{}: {}", case.file_name()?.display(), difference(case)?)));
    let differ: Vec<String> = differ.collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
