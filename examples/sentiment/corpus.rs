//! Labelled sentences as tokens, and batches of them.

use std::error::Error;
use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::Rng;
use rand::seq::SliceRandom;
use tokenizers::Tokenizer;

use crate::network::Sequences;
use crate::tokens::MASK;

/// Batches whose sentences are sorted together by their length: enough that those of a batch are about as long, and
/// few enough that every pass has other ones.
const SORTED_TOGETHER: usize = 16;

/// A sentence and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// What it says.
    pub text: String,
    /// Its class.
    pub class: u8,
}

/// A sentence as the network takes it.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    /// Token ids, the first and the last of them marking its ends.
    pub ids: Vec<i64>,
    /// Its class.
    pub class: u8,
}

/// Reads `sentence<TAB>class` lines.
pub(crate) fn read(file: &Path, classes: usize) -> Result<Vec<Sentence>, Box<dyn Error>> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let lines = text.lines().zip(1..);
    lines
        .map(|(line, number)| {
            parse(line, classes).ok_or_else(|| {
                let file = file.display();
                format!("{file}:{number}: it takes a sentence, a tab and a class below {classes}").into()
            })
        })
        .collect()
}

fn parse(line: &str, classes: usize) -> Option<Sentence> {
    let (text, class) = line.split_once('\t')?;
    let class = class.parse().ok().filter(|class| usize::from(*class) < classes)?;
    let text = text.to_owned();
    Some(Sentence { text, class })
}

/// The sentences' tokens.
pub(crate) fn tokenise(
    tokenizer: &Tokenizer,
    sentences: &[Sentence],
) -> Result<Vec<Tokens>, Box<dyn Error + Send + Sync>> {
    sentences
        .iter()
        .map(|sentence| {
            let encoding = tokenizer.encode(sentence.text.as_str(), true)?;
            Ok(Tokens {
                ids: encoding.get_ids().iter().map(|id| i64::from(*id)).collect(),
                class: sentence.class,
            })
        })
        .collect()
}

/// Every sentence once, in batches of similar length, in a random order.
pub(crate) fn batches<'a>(sentences: &'a [Tokens], size: usize, rng: &mut impl Rng) -> Vec<Vec<&'a Tokens>> {
    let mut order: Vec<&Tokens> = sentences.iter().collect();
    order.shuffle(rng);
    let mut batches = Vec::new();
    for some in order.chunks_mut(size * SORTED_TOGETHER) {
        some.sort_by_key(|sentence| sentence.ids.len());
        batches.extend(some.chunks(size).map(<[&Tokens]>::to_vec));
    }
    batches.shuffle(rng);
    batches
}

/// Sentences as the network takes them, a share of their tokens hidden, and their classes.
pub(crate) fn tensors(
    batch: &[&Tokens],
    hide: f64,
    rng: &mut impl Rng,
    device: &Device,
) -> (Sequences, Tensor<1, Int>) {
    let longest = batch.iter().map(|tokens| tokens.ids.len()).max().unwrap_or(0);
    let (mut ids, mut mask) = (Vec::new(), Vec::new());
    for tokens in batch {
        let last = tokens.ids.len().saturating_sub(1);
        for place in 0..longest {
            let id = tokens.ids.get(place).copied();
            let within = (1..last).contains(&place);
            let hidden = within && rng.random_bool(hide);
            ids.push(if hidden { MASK } else { id.unwrap_or(0) });
            mask.push(f32::from(u8::from(id.is_some())));
        }
    }
    let shape = [batch.len(), longest];
    let classes: Vec<i64> = batch.iter().map(|tokens| i64::from(tokens.class)).collect();
    let sequences = Sequences {
        ids: Tensor::from_data(TensorData::new(ids, shape), device),
        mask: Tensor::from_data(TensorData::new(mask, shape), device),
    };
    let classes = Tensor::from_data(TensorData::new(classes, [batch.len()]), device);
    (sequences, classes)
}
