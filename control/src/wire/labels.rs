//! Conversions of labels, which are fields of their objects' messages.

use super::{BadMessage, optional};
use crate::model::{Chain, Key, Label, Labelled, Model, Module, Rule};
use crate::proto;

/// A message of an object that may have a label.
pub(crate) trait HasLabel {
    /// Returns the message with this label.
    #[must_use]
    fn with_label(self, label: Option<&Label>) -> Self;
}

macro_rules! labelled {
    ($($object:ident: $field:literal;)+) => {$(
        impl HasLabel for proto::$object {
            fn with_label(self, label: Option<&Label>) -> Self {
                Self { label: label.map(Label::to_string), ..self }
            }
        }

        impl TryFrom<proto::$object> for Labelled<$object> {
            type Error = BadMessage;

            fn try_from(mut message: proto::$object) -> Result<Self, BadMessage> {
                let label = optional($field, message.label.take(), Label::new)?;
                Ok(Self { object: message.try_into()?, label })
            }
        }
    )+};
}

labelled! {
    Module: "module.label";
    Key: "key.label";
    Model: "model.label";
    Chain: "chain.label";
    Rule: "rule.label";
}
