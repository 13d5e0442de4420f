//! The images that clients send, the model, and its answers in the text of the function classifier.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use pinion_inference::Model;
use pinion_tests::product::build::workspace;

use crate::clients::web::load::Exchange;

/// The path at which images are classified.
pub(crate) const PATH: &str = "/classify";
/// Bytes of an image: red, green and blue of 32 x 32 pixels.
pub(crate) const IMAGE_BYTES: usize = 32 * 32 * 3;
/// As many of the sample's images are sent.
const IMAGES: usize = 10;
/// The classes, in the order of the model's scores.
const LABELS: [&str; 10] = [
    "circle",
    "square",
    "triangle",
    "cross",
    "ring",
    "horizontal-stripes",
    "vertical-stripes",
    "diagonal-stripes",
    "checkerboard",
    "dots",
];

/// Returns the path of the model.
pub(crate) fn model_file() -> PathBuf {
    workspace().join("samples/classifier/model/cifar.onnx")
}

/// Loads a model in ONNX, in the steps of a node.
///
/// # Errors
/// It can't be read, or is refused.
pub(crate) fn load(file: &Path) -> anyhow::Result<Model> {
    let onnx = fs::read(file).with_context(|| file.display().to_string())?;
    let form = pinion_builder::model::import(&onnx).with_context(|| file.display().to_string())?;
    Ok(Model::load(&form)?)
}

/// Returns what the model makes of an image, as JSON.
///
/// # Errors
/// The model fails.
pub(crate) fn verdict(model: &Model, image: &[u8]) -> anyhow::Result<String> {
    let outputs = model.run(&[image])?;
    let (scores, []) = outputs.first().context("a model without an output")?.as_chunks::<4>() else {
        anyhow::bail!("the model's output is not of f32")
    };
    ensure!(scores.len() == LABELS.len(), "the model has {} classes instead of {}", scores.len(), LABELS.len());
    let scores: Vec<f32> = scores.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let best = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other])).unwrap_or(0);
    let mut json = format!("{{\"label\":\"{}\",\"scores\":{{", LABELS[best]);
    for (at, (label, score)) in LABELS.iter().zip(scores).enumerate() {
        let comma = if at > 0 { "," } else { "" };
        write!(json, "{comma}\"{label}\":{score:.4}")?;
    }
    Ok(json + "}}\n")
}

/// Returns the requests with images, and the model's answers.
///
/// # Errors
/// The images or the model can't be read.
pub(crate) fn exchanges() -> anyhow::Result<Vec<Exchange>> {
    let file = workspace().join("samples/classifier/tests/held-out.bin");
    let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
    let model = load(&model_file())?;
    // Before each image there is a byte with its class.
    let images = bytes.chunks_exact(1 + IMAGE_BYTES).map(|image| &image[1..]).take(IMAGES);
    images.map(|image| Ok(Exchange { request: request(image), body: verdict(&model, image)?.into_bytes() })).collect()
}

fn request(image: &[u8]) -> Vec<u8> {
    let head = format!("POST {PATH} HTTP/1.1\r\nHost: node\r\nContent-Length: {}\r\n\r\n", image.len());
    [head.as_bytes(), image].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_has_an_answer_with_a_label_and_as_many_scores_as_there_are_classes() {
        let all = exchanges().unwrap();
        assert_eq!(all.len(), IMAGES);
        for Exchange { request, body } in all {
            assert!(request.starts_with(b"POST /classify HTTP/1.1\r\n") && request.len() > IMAGE_BYTES);
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(LABELS.contains(&json["label"].as_str().unwrap()), "{json}");
            assert_eq!(json["scores"].as_object().unwrap().len(), LABELS.len());
        }
    }
}
