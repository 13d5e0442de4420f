//! Models in ONNX: those that nodes take, and what is refused, each with a sentence.

mod onnx;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use onnx::{Onnx, input, step, step_along, step_with, weight};
use pinion_builder::model::import;
use pinion_builder_client::process::{BuildError, Builder};
use pinion_inference::{ElementType, Model, RunError};
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::{AttributeProto, GraphProto, TensorProto};

fn load(onnx: &[u8]) -> Model {
    Model::load(&import(onnx).unwrap()).unwrap()
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect()
}

#[track_caller]
fn refusal(onnx: &[u8]) -> String {
    match import(onnx) {
        Ok(_) => panic!("it was taken"),
        Err(refused) => refused.to_string(),
    }
}

/// The sample's model, and the images on which its accuracy is stated.
fn classifier() -> (Vec<u8>, Vec<u8>) {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/classifier");
    (fs::read(sample.join("model/cifar.onnx")).unwrap(), fs::read(sample.join("tests/held-out.bin")).unwrap())
}

#[test]
fn the_samples_model_recognises_at_least_38_of_40_images_that_it_was_not_trained_on() {
    let (onnx, images) = classifier();
    let model = load(&onnx);
    let [input] = model.inputs() else { panic!("it has one input") };
    assert_eq!((&*input.name, input.element, &*input.shape), ("image", ElementType::U8, &[1, 32, 32, 3][..]));
    let images = images.as_chunks::<3073>().0;
    let right = images.iter().filter(|image| {
        let scores = numbers(&model.run(&[&image[1..]]).unwrap()[0]);
        let sum: f32 = scores.iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "its scores are shares: {sum}");
        let best = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other]));
        best == Some(image[0].into())
    });
    let right = right.count();
    assert!(images.len() == 40 && right >= 38, "{right} of {}", images.len());
}

#[test]
fn a_model_says_what_it_takes() {
    let model = load(&classifier().0);
    let needs = model.needs();
    // Three convolutions and a matrix have 6.6 million multiplications.
    assert!((6_000_000..40_000_000).contains(&needs.operations), "{needs:?}");
    assert!((100_000..1_000_000).contains(&needs.constant_bytes) && needs.run_bytes < 8 << 20, "{needs:?}");
}

#[test]
fn inputs_of_other_numbers_and_sizes_are_refused_before_a_run() {
    let model = load(&Onnx::of(&[1, 4], vec![step("Relu", &["x"], "y")]).bytes());
    assert_eq!(numbers(&model.run(&[floats(&[-1.0, 2.0, -3.0, 4.0])]).unwrap()[0]), [0.0, 2.0, 0.0, 4.0]);
    let none: [&[u8]; 0] = [];
    assert!(matches!(model.run(&none), Err(RunError::Inputs { given: 0, wanted: 1 })));
    let refused = model.run(&[[0; 15]]).unwrap_err().to_string();
    assert_eq!(refused, "the input x (f32 of 1 x 4) takes 16 bytes, not 15");
}

#[test]
fn all_types_of_inputs_arrive_and_leave_as_they_are() {
    for (ty, element) in [
        (DataType::Uint8, ElementType::U8),
        (DataType::Int32, ElementType::I32),
        (DataType::Int64, ElementType::I64),
        (DataType::Float, ElementType::F32),
    ] {
        let mut onnx = Onnx::of(&[3], vec![step("Concat", &["x", "x"], "y")]);
        onnx.steps[0] = step_along("Concat", &["x", "x"], "y", 0);
        onnx.inputs = vec![input("x", ty, &[3])];
        let model = load(&onnx.bytes());
        assert_eq!(model.outputs()[0].element, element);
        let bytes: Vec<u8> = (0..3 * element.bytes() as u8).collect();
        assert_eq!(model.run(&[&bytes]).unwrap()[0], [&*bytes, &*bytes].concat());
    }
}

#[test]
fn steps_whose_names_differ_in_one_sign_only_stay_apart() {
    let steps = vec![step("Neg", &["x"], "a.b"), step("Mul", &["x", "x"], "a_b"), step("Add", &["a.b", "a_b"], "y")];
    let model = load(&Onnx::of(&[1], steps).bytes());
    assert_eq!(numbers(&model.run(&[floats(&[3.0])]).unwrap()[0]), [6.0]);
}

#[test]
fn the_first_size_of_an_input_counts_as_one_if_it_is_open() {
    let model = load(&Onnx::of(&[0, 4], vec![step("Relu", &["x"], "y")]).bytes());
    assert_eq!(model.inputs()[0].shape, [1, 4]);
    let refused = refusal(&Onnx::of(&[1, 0], vec![step("Relu", &["x"], "y")]).bytes());
    assert!(refused.starts_with("its input x has no fixed shape: export it with fixed sizes"), "{refused}");
}

#[test]
fn what_is_no_model_is_refused() {
    let (onnx, _) = classifier();
    for bytes in [&b""[..], b"\0asm\x01\0\0\0", b"<!DOCTYPE html><html></html>", &onnx[..onnx.len() / 2], &[0xff; 4096]]
    {
        let refused = refusal(bytes);
        assert!(refused.starts_with("it is not a model in ONNX: "), "{refused}");
    }
}

#[test]
fn every_byte_of_a_model_may_be_wrong_without_a_panic() {
    let (onnx, _) = classifier();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..60 {
        let mut damaged = onnx.clone();
        // Graph and names are at the start, weights after that.
        for _ in 0..random.usize(1..4) {
            let end = if random.bool() { 1500 } else { damaged.len() };
            let at = random.usize(..end);
            damaged[at] = random.u8(..);
        }
        if let Err(refused) = import(&damaged) {
            assert!(!refused.to_string().is_empty());
        }
    }
}

#[test]
fn steps_that_nodes_do_not_run_are_refused_by_name() {
    let refused = refusal(&Onnx::of(&[1], vec![step("NonZero", &["x"], "y")]).bytes());
    assert_eq!(refused, "its step NonZero of y is of the kind NonZero, which nodes do not run: use others");
    let mut foreign = step("Relu", &["x"], "y");
    foreign.domain = "com.example\n".to_owned();
    let refused = refusal(&Onnx::of(&[1], vec![foreign]).bytes());
    assert!(refused.contains("of the kind com.example\\n.Relu, which"), "{refused}");
    let mut with_graph = step("Relu", &["x"], "y");
    with_graph.attribute.push(AttributeProto { g: Some(GraphProto::default()), ..AttributeProto::default() });
    let refused = refusal(&Onnx::of(&[1], vec![with_graph]).bytes());
    assert!(refused.starts_with("it has a step with a graph or a sparse tensor of its own"), "{refused}");
}

#[test]
fn weights_that_are_elsewhere_or_have_other_sizes_than_they_claim_are_refused() {
    let graph = |weight: TensorProto| Onnx::of(&[1, 2], vec![step("Add", &["x", "w"], "y")]).with(weight).bytes();
    load(&graph(weight("w", &[1, 2], vec![1.0, 2.0])));
    let refused = refusal(&graph(weight("w", &[1, 3], vec![1.0, 2.0])));
    assert_eq!(refused, "its weight w has 8 bytes, and its shape needs 12");
    let refused = refusal(&graph(weight("w", &[1 << 40, 1 << 40], vec![1.0])));
    assert_eq!(refused, "its weight w has 4 bytes, and its shape needs more than there can be");
    let refused = refusal(&graph(weight("w", &[-1, -2], vec![1.0, 2.0])));
    assert_eq!(refused, "its weight w has 8 bytes, and its shape needs more than there can be");
    let mut elsewhere = weight("w", &[1, 2], Vec::new());
    elsewhere.data_location = Some(DataLocation::External as i32);
    let refused = refusal(&graph(elsewhere));
    assert!(refused.starts_with("it has weights in other files, which nodes do not take"), "{refused}");
}

#[test]
fn a_graph_that_makes_huge_tensors_of_small_ones_is_refused_by_its_shapes() {
    // Each step doubles what the last has made.
    let names: Vec<String> = (0..40).map(|number| format!("x{number}")).collect();
    let mut last = "x";
    let mut steps = Vec::new();
    for name in &names {
        steps.push(step_along("Concat", &[last, last], name, 0));
        last = name;
    }
    steps.push(step("Relu", &[last], "y"));
    let refused = refusal(&Onnx::of(&[1024], steps).bytes());
    assert!(refused.contains("bytes of results in a run, and 268435456 are the most"), "{refused}");

    // A column times a row.
    let steps = vec![step_with("Transpose", &["x"], "t", &[("perm", &[1, 0])]), step("MatMul", &["t", "x"], "y")];
    let refused = refusal(&Onnx::of(&[1, 100_000], steps).bytes());
    assert!(refused.contains("bytes of results in a run, and 268435456 are the most"), "{refused}");
}

#[test]
fn a_graph_with_too_many_operations_is_refused() {
    let steps = vec![
        step("MatMul", &["x", "x"], "a"),
        step("MatMul", &["a", "x"], "b"),
        step("MatMul", &["b", "x"], "c"),
        step("MatMul", &["c", "x"], "y"),
    ];
    let refused = refusal(&Onnx::of(&[1024, 1024], steps).bytes());
    assert!(refused.contains("operations in a run, and 4000000000 are the most"), "{refused}");
}

#[test]
fn inputs_and_outputs_are_bounded() {
    let refused = refusal(&Onnx::of(&[1024, 1024], vec![step("Relu", &["x"], "y")]).bytes());
    assert!(refused.contains("it has 8388608 bytes of inputs and outputs, and 4194304 are the most"), "{refused}");
    let refused = refusal(&Onnx::of(&[1; 9], vec![step("Relu", &["x"], "y")]).bytes());
    assert_eq!(refused, "it has 9 axes in an input, and 8 are the most");
    let mut onnx = Onnx::of(&[4], vec![step("Relu", &["x"], "y")]);
    onnx.inputs = vec![input("x", DataType::Double, &[4])];
    let refused = refusal(&onnx.bytes());
    assert!(
        refused.contains("elements of the type F64, and inputs and outputs may have f32, u8, i32 and i64"),
        "{refused}"
    );
}

#[test]
fn a_deep_graph_is_taken_up_to_its_bound() {
    let chain = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("x{number}")).collect();
        let inputs = std::iter::once("x").chain(names.iter().map(String::as_str));
        let mut steps: Vec<_> = inputs.zip(&names).map(|(input, output)| step("Sin", &[input], output)).collect();
        let last = names.last().unwrap();
        steps.push(step("Relu", &[last], "y"));
        Onnx::of(&[2], steps).bytes()
    };
    load(&chain(1000));
    let refused = refusal(&chain(4096));
    assert_eq!(refused, "it has 4097 steps, and 4096 are the most");
}

#[test]
fn a_window_larger_than_any_image_is_refused() {
    let steps = vec![step_with("MaxPool", &["x"], "y", &[("kernel_shape", &[2, 5000])])];
    let refused = refusal(&Onnx::of(&[1, 1, 8, 8], steps).bytes());
    assert!(refused.starts_with("it has a window or padding of more than 4096 elements"), "{refused}");
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_pinion-builder");

#[test]
fn the_process_writes_the_form_and_a_node_loads_it() {
    let (onnx, _) = classifier();
    let form = Builder::new(PROGRAM.into()).model(&onnx).unwrap();
    assert_eq!(form, import(&onnx).unwrap());
    assert_eq!(Model::load(&form).unwrap().outputs()[0].shape, [1, 10]);
}

#[test]
fn the_process_refuses_with_a_sentence() {
    let error = Builder::new(PROGRAM.into()).model(b"no model").unwrap_err();
    assert!(
        matches!(&error, BuildError::Refused(sentence) if sentence.starts_with("it is not a model in ONNX")),
        "{error}"
    );
    let error = Builder::new(PROGRAM.into()).model(&vec![0; (64 << 20) + 1]).unwrap_err();
    assert_eq!(error.to_string(), "it has more bytes than a model may have, 67108864");
}

/// A weight that each step doubles: this is computed while the model is read.
fn growing() -> Vec<u8> {
    let names: Vec<String> = (0..40).map(|number| format!("w{number}")).collect();
    let mut last = "w";
    let mut steps = Vec::new();
    for name in &names {
        steps.push(step_along("Concat", &[last, last], name, 0));
        last = name;
    }
    steps.push(step_with("ReduceSum", &[last], "sum", &[]));
    steps.push(step("Add", &["x", "sum"], "y"));
    Onnx::of(&[1], steps).with(weight("w", &[4096], vec![1.0; 4096])).bytes()
}

#[test]
fn constants_that_grow_end_with_the_process_and_its_limits() {
    let error = Builder::new(PROGRAM.into()).model(&growing()).unwrap_err();
    let is_refused = matches!(error, BuildError::Refused(_) | BuildError::Limits(_));
    assert!(is_refused, "{error}");
}

#[test]
fn a_model_that_takes_too_long_or_too_much_memory_is_refused_with_the_limit() {
    let refusal = |limit: &str| {
        let (onnx, _) = classifier();
        let mut child = Command::new(PROGRAM)
            .args([limit, "model"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Without its end the builder waits for more, which takes time.
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(&onnx);
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        String::from_utf8(output.stderr).unwrap()
    };
    for (limit, named) in [("--time-ms-max=50", "0.05 s"), ("--memory-mib-max=1", "1 MiB of memory")] {
        let said = refusal(limit);
        assert!(said.contains(&format!("preparing it took more than the {named} that a model may have")), "{said}");
    }
}

#[test]
fn a_form_that_is_damaged_is_an_error() {
    let form = import(&classifier().0).unwrap();
    for damaged in [&form[..0], &form[..7], &form[..60], &form[1..], &form[..form.len() / 2]] {
        assert!(Model::load(damaged).unwrap_err().to_string().starts_with("its form is damaged"), "{}", damaged.len());
    }
}
