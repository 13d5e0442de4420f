//! The model's classes, and what is answered.

use std::fmt::Write;

use pinion_sdk::nn::{Model, NnError, Tensor};
use pinion_sdk::{InitError, warn};

use crate::image::{self, BadImage, SIDE};

/// The classes of the model in `model`, in the order of its scores; written by `training/shapes.py`.
pub const LABELS: [&str; 10] = [
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

/// The answer to an image.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// How much of each class is in it, by the model: from 0 to 1, together 1.
    Scores([f32; LABELS.len()]),
    /// It is no image that can be classified.
    Image(BadImage),
    /// There was nothing.
    Nothing,
    /// The model could not be run.
    Model(NnError),
}

impl Verdict {
    /// Returns it as JSON, with a line feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let error = match self {
            Self::Scores(scores) => return scores_as_json(scores),
            // None of these sentences has a character that JSON escapes.
            Self::Image(error) => error.to_string(),
            Self::Nothing => "there is no content: send an image".to_owned(),
            Self::Model(error) => error.to_string(),
        };
        format!("{{\"error\":\"{error}\"}}\n")
    }

    /// Returns the status of HTTP for it (RFC 9110, section 15).
    #[must_use]
    pub fn status(&self) -> &'static str {
        match self {
            Self::Scores(_) => "200 OK",
            Self::Nothing => "400 Bad Request",
            Self::Image(BadImage::Kind { .. }) => "415 Unsupported Media Type",
            Self::Image(BadImage::Size) => "413 Content Too Large",
            Self::Image(BadImage::Damaged) => "422 Unprocessable Content",
            Self::Model(NnError::Busy) => "503 Service Unavailable",
            Self::Model(_) => "500 Internal Server Error",
        }
    }
}

fn scores_as_json(scores: &[f32; LABELS.len()]) -> String {
    let best = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other])).unwrap_or(0);
    let mut json = format!("{{\"label\":\"{}\",\"scores\":{{", LABELS[best]);
    for (index, (label, score)) in LABELS.iter().zip(scores).enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(json, "{comma}\"{label}\":{score:.4}").expect("a string takes all");
    }
    json + "}}\n"
}

/// Runs the model.
#[derive(Debug)]
pub struct Classifier {
    model: Model,
}

impl Classifier {
    /// Returns a classifier by the model that the stage was granted under this name.
    ///
    /// # Errors
    ///
    /// The stage was not granted it.
    pub fn new(name: &str) -> Result<Self, InitError> {
        Ok(Self { model: Model::load(name)? })
    }

    /// Classifies an image.
    pub fn classify(&self, bytes: &[u8]) -> Verdict {
        if bytes.is_empty() {
            return Verdict::Nothing;
        }
        let pixels = match image::pixels(bytes) {
            Ok(pixels) => pixels,
            Err(error) => return Verdict::Image(error),
        };
        match self.scores(&pixels) {
            Ok(scores) => Verdict::Scores(scores),
            Err(error) => {
                warn!("the model could not be run: {error}");
                Verdict::Model(error)
            }
        }
    }

    fn scores(&self, pixels: &[u8]) -> Result<[f32; LABELS.len()], NnError> {
        let outputs = self.model.run(&[Tensor::u8(&[1, SIDE as u32, SIDE as u32, 3], pixels)])?;
        outputs.f32(0, LABELS.len())?.try_into().map_err(|_| NnError::Output)
    }
}
