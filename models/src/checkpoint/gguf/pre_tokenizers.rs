//! Pre-tokenizers, which split texts into words before byte-level BPE, by the value of `tokenizer.ggml.pre`.
//!
//! Each equals the pre-tokenizer in the `tokenizer.json` of the corresponding models.

use serde_json::{Value, json};

/// A pre-tokenizer.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    splits: &'static [Split],
    /// Whether a word that is in the vocabulary becomes one token regardless of merges.
    pub(super) ignores_merges: bool,
    /// Whether a BOS token is added by default.
    pub(super) begins: bool,
    /// Whether texts are normalised to NFC.
    composes: bool,
}

/// A step of a pre-tokenizer.
#[derive(Debug, Clone, Copy)]
enum Split {
    /// Each match of an expression is a word.
    Matches(&'static str),
    /// Each digit is a word.
    Digits,
    /// Each run of digits is a word.
    Numbers,
    /// Each run of punctuation is a word.
    Punctuation,
    /// Splits by the expression of GPT-2 and converts words to bytes.
    Gpt2,
}

/// Words of Llama 3 and of OpenAI's `cl100k_base`; numbers have up to three digits.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Like [`LLAMA_3`], with single digits.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words of OpenAI's `o200k_base`; capital letters begin words.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words of Mistral's Tekken.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words of GPT-2.
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Words of BLOOM.
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";
/// Letters with case, for `DeepSeek` LLM.
const CASED: &str = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+";
/// Chinese and Korean, for `DeepSeek`.
const CHINESE: &str = r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+";
/// Chinese and Japanese, for `DeepSeek` V3.
const JAPANESE: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+";
/// ASCII and full-width punctuation, quotation marks and full stops, for `DeepSeek` LLM.
const PUNCTUATION: &str = r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+";

const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    splits: &[Split::Gpt2],
    ignores_merges: false,
    begins: false,
    composes: false,
};

const ALL: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        splits: &[
            Split::Matches(r"[\p{P}\$\+<=>\^~\|]+"),
            Split::Matches(GPT_2),
            Split::Matches(r"\p{N}+"),
            Split::Matches("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-2", "phi-2", "roberta-bpe", "gigachat", "jais"],
        ..PLAIN
    },
    PreTokenizer {
        names: &["mpt", "olmo"],
        composes: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        splits: &[Split::Matches(LLAMA_3)],
        ignores_merges: true,
        begins: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        splits: &[Split::Matches(LLAMA_3)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        splits: &[Split::Matches(QWEN_2)],
        composes: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["stablelm2"],
        splits: &[Split::Matches(QWEN_2)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4"],
        splits: &[Split::Matches(GPT_4O)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        splits: &[Split::Matches(TEKKEN)],
        ignores_merges: true,
        begins: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        splits: &[Split::Digits, Split::Gpt2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["command-r"],
        splits: &[Split::Digits, Split::Gpt2],
        composes: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["falcon"],
        splits: &[
            Split::Punctuation,
            Split::Gpt2,
            Split::Numbers,
            Split::Matches("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        splits: &[Split::Matches(BLOOM)],
        ..PLAIN
    },
    PreTokenizer {
        names: &["viking"],
        splits: &[Split::Matches(BLOOM), Split::Digits],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        splits: &[
            Split::Matches("[\r\n]"),
            Split::Matches(CASED),
            Split::Matches(PUNCTUATION),
            Split::Matches(r"\s+$"),
            Split::Matches(CHINESE),
            Split::Digits,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        splits: &[
            Split::Matches("[\r\n]"),
            Split::Matches(r"\s?\p{L}+"),
            Split::Matches(r"\s?\p{P}+"),
            Split::Matches(CHINESE),
            Split::Digits,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3"],
        splits: &[
            Split::Matches(r"\p{N}{1,3}"),
            Split::Matches(JAPANESE),
            Split::Matches(
                "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
            ),
        ],
        ..PLAIN
    },
];

impl PreTokenizer {
    /// Returns the pre-tokenizer with this name.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|known| known.names.contains(&name))
    }

    /// Returns the names of all pre-tokenizers.
    pub(super) fn names() -> Vec<&'static str> {
        ALL.iter().flat_map(|known| known.names).copied().collect()
    }

    /// Returns the `normalizer` of `tokenizer.json`.
    pub(super) fn normalizer(&self) -> Value {
        if self.composes {
            json!({"type": "NFC"})
        } else {
            Value::Null
        }
    }

    /// Returns the `pre_tokenizer` of `tokenizer.json`.
    pub(super) fn json(&self) -> Value {
        let mut steps: Vec<Value> = self.splits.iter().map(|split| split.json()).collect();
        // Adds the byte-level step once; the GPT-2 step already includes it.
        if !self.splits.iter().any(|split| matches!(split, Split::Gpt2)) {
            steps.push(byte_level(false));
        }
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

impl Split {
    fn json(self) -> Value {
        match self {
            Self::Matches(expression) => json!({
                "type": "Split",
                "pattern": {"Regex": expression},
                "behavior": "Isolated",
                "invert": false,
            }),
            Self::Digits => json!({"type": "Digits", "individual_digits": true}),
            Self::Numbers => json!({"type": "Digits", "individual_digits": false}),
            Self::Punctuation => json!({"type": "Punctuation", "behavior": "Contiguous"}),
            Self::Gpt2 => byte_level(true),
        }
    }
}

/// Returns the step that maps bytes to characters; with `words`, it first splits by the expression of GPT-2.
pub(super) fn byte_level(words: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": words})
}
