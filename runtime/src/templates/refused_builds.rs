//! Builds that were refused a short while ago, so that one that is asked for again and again is answered without a build.
//!
//! Only what the builder refused on account of the module is kept. A limit on time may be met another time, and so each answer is given for
//! a minute only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pinion_control::model::TenantName;
use pinion_control::node::Refusal;

use super::artifacts::TemplateKey;

/// How long an answer is given again.
const KEPT: Duration = Duration::from_secs(60);
/// Answers that are kept for a tenant; the oldest goes first.
const ANSWERS_MAX: usize = 64;
/// Longer sentences are not kept.
const SENTENCE_BYTES_MAX: usize = 4096;

/// See the module.
#[derive(Default)]
pub struct RefusedBuilds {
    tenants: Mutex<BTreeMap<TenantName, VecDeque<Answer>>>,
}

struct Answer {
    key: TemplateKey,
    refusal: Refusal,
    when: Instant,
}

impl RefusedBuilds {
    /// Notes why a template was not built for a tenant.
    pub fn note(&self, tenant: &TenantName, key: TemplateKey, refusal: &Refusal) {
        self.note_at(Instant::now(), tenant, key, refusal);
    }

    /// Returns why it was not built for the tenant a short while ago.
    pub fn answer(&self, tenant: &TenantName, key: &TemplateKey) -> Option<Refusal> {
        self.answer_at(Instant::now(), tenant, key)
    }

    fn note_at(&self, now: Instant, tenant: &TenantName, key: TemplateKey, refusal: &Refusal) {
        let Refusal::Invalid(sentence) = refusal else { return };
        if sentence.len() > SENTENCE_BYTES_MAX {
            return;
        }
        let mut tenants = self.tenants();
        for answers in tenants.values_mut() {
            answers.retain(|answer| now.saturating_duration_since(answer.when) < KEPT);
        }
        tenants.retain(|_, answers| !answers.is_empty());
        let answers = tenants.entry(tenant.clone()).or_default();
        answers.retain(|answer| answer.key != key);
        if answers.len() == ANSWERS_MAX {
            answers.pop_front();
        }
        answers.push_back(Answer { key, refusal: refusal.clone(), when: now });
    }

    fn answer_at(&self, now: Instant, tenant: &TenantName, key: &TemplateKey) -> Option<Refusal> {
        let tenants = self.tenants();
        let mut answers = tenants.get(tenant)?.iter();
        let is_it = |answer: &&Answer| answer.key == *key && now.saturating_duration_since(answer.when) < KEPT;
        answers.find(is_it).map(|answer| answer.refusal.clone())
    }

    fn tenants(&self) -> MutexGuard<'_, BTreeMap<TenantName, VecDeque<Answer>>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::model::Digest;

    use super::*;
    use crate::templates::artifacts::Wishes;

    fn key(number: usize) -> TemplateKey {
        let config = number.to_string();
        let wishes = Wishes {
            tenant: "demo",
            config: config.as_bytes(),
            files: None,
            memory_bytes_max: 0,
            fields: Vec::new(),
            keys: Vec::new(),
            models: Vec::new(),
        };
        TemplateKey::new(Digest::of(b"a module"), &wishes)
    }

    fn refusal(sentence: &str) -> Refusal {
        Refusal::Invalid(sentence.to_owned())
    }

    #[test]
    fn an_answer_is_given_again_for_a_minute_to_its_tenant_alone() {
        let (builds, start) = (RefusedBuilds::default(), Instant::now());
        let [a, b]: [TenantName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        builds.note_at(start, &a, key(1), &refusal("too blue"));
        assert_eq!(builds.answer_at(start + KEPT / 2, &a, &key(1)), Some(refusal("too blue")));
        assert_eq!(builds.answer_at(start + KEPT / 2, &a, &key(2)), None);
        assert_eq!(builds.answer_at(start + KEPT / 2, &b, &key(1)), None);
        assert_eq!(builds.answer_at(start + KEPT, &a, &key(1)), None);
        builds.note_at(start + KEPT, &b, key(1), &refusal("too blue"));
        assert!(!builds.tenants().contains_key(&a), "nothing is left of it");
    }

    #[test]
    fn a_tenant_pushes_out_its_own_answers_only() {
        let (builds, now) = (RefusedBuilds::default(), Instant::now());
        let [a, b]: [TenantName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        builds.note_at(now, &b, key(0), &refusal("too blue"));
        (0..=ANSWERS_MAX).for_each(|number| builds.note_at(now, &a, key(number), &refusal("too blue")));
        assert_eq!(builds.answer_at(now, &a, &key(0)), None);
        assert!(builds.answer_at(now, &a, &key(1)).is_some() && builds.answer_at(now, &b, &key(0)).is_some());
    }

    #[test]
    fn faults_of_the_node_and_endless_sentences_are_not_kept() {
        let (builds, now) = (RefusedBuilds::default(), Instant::now());
        let tenant: TenantName = "a".parse().unwrap();
        builds.note_at(now, &tenant, key(1), &Refusal::Failed("no disk".to_owned()));
        builds.note_at(now, &tenant, key(2), &refusal(&"blue ".repeat(SENTENCE_BYTES_MAX)));
        assert_eq!((builds.answer_at(now, &tenant, &key(1)), builds.answer_at(now, &tenant, &key(2))), (None, None));
    }
}
