//! Families of text encoders: class names and descriptions.

mod albert;
mod bert;
mod big_bird;
mod convbert;
mod deberta;
mod distilbert;
mod dpr;
mod electra;
mod embedding_gemma;
mod ernie;
mod esm;
mod eurobert;
mod fnet;
mod gte;
mod ibert;
mod jina;
mod layoutlm;
mod longformer;
mod luke;
mod megatron_bert;
mod mobilebert;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod rembert;
mod roberta;
mod roformer;
mod squeezebert;
mod t5_encoder;
mod ultrabert;
mod xlm;
mod xlnet;

use super::dual::clip;
use super::text_encoder::config::TextEncoderConfig;
use super::text_encoder::head::TextTask;
use crate::checkpoint::{Config, LoadError};
use crate::tasks::embedding::Pooling;

/// A class of a family.
pub(super) struct TextClass {
    /// `architectures[0]` in `config.json`.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Tensor name prefix that only this class of its `model_type` has; `None` for the base model.
    pub head: Option<&'static str>,
    /// Function that describes the base model and its heads.
    pub read: fn(&Config) -> Result<TextEncoderConfig, LoadError>,
    /// Task of the class.
    pub task: TextTask,
    /// Name prefixes of tensors in checkpoints that the model does not use.
    pub unused: &'static [&'static str],
}

/// A family: its class names and its description.
struct TextFamily {
    /// Class names for sequence classification, question answering, token classification and the base model, in this
    /// order.
    classes: [Option<&'static str>; 4],
    model_type: &'static str,
    read: fn(&Config) -> Result<TextEncoderConfig, LoadError>,
    /// [`TextClass::unused`] of all classes except the sequence classifier.
    unused: &'static [&'static str],
}

/// Returns the classes of all families.
pub(super) fn classes() -> impl Iterator<Item = TextClass> {
    let families = TEXT_FAMILIES.iter().flat_map(TextFamily::classes);
    families
        .chain(DENSE_RETRIEVERS)
        .chain(BESIDE_IMAGES)
        .chain([EMBEDDING_GEMMA])
        .chain(XLNET)
        .chain(like_xlm(
            "xlm",
            [
                "XLMForSequenceClassification",
                "XLMForQuestionAnsweringSimple",
                "XLMForTokenClassification",
                "XLMModel",
            ],
        ))
        .chain(like_xlm(
            "flaubert",
            [
                "FlaubertForSequenceClassification",
                "FlaubertForQuestionAnsweringSimple",
                "FlaubertForTokenClassification",
                "FlaubertModel",
            ],
        ))
        .chain([BIG_BIRD_SPANS])
}

/// `BigBird` for question answering, whose head has a different name.
const BIG_BIRD_SPANS: TextClass = TextClass {
    name: "BigBirdForQuestionAnswering",
    model_type: "big_bird",
    head: Some("qa_classifier."),
    read: big_bird::read,
    task: TextTask::QuestionAnswering,
    unused: &[],
};

/// Classes of `XLNet`, whose heads have different names.
const XLNET: [TextClass; 4] = [
    TextClass {
        name: "XLNetForSequenceClassification",
        model_type: "xlnet",
        head: Some("logits_proj."),
        read: xlnet::read,
        task: TextTask::Classification,
        unused: &["transformer.mask_emb"],
    },
    TextClass {
        name: "XLNetForQuestionAnsweringSimple",
        model_type: "xlnet",
        head: Some("qa_outputs."),
        read: xlnet::read,
        task: TextTask::QuestionAnswering,
        unused: &["transformer.mask_emb"],
    },
    TextClass {
        name: "XLNetForTokenClassification",
        model_type: "xlnet",
        head: Some("classifier."),
        read: xlnet::read,
        task: TextTask::TokenClassification,
        unused: &["transformer.mask_emb"],
    },
    TextClass {
        name: "XLNetModel",
        model_type: "xlnet",
        head: None,
        read: xlnet::read,
        task: TextTask::Embedding(Pooling::Mean),
        unused: &["transformer.mask_emb", "mask_emb"],
    },
];

/// Returns the classes of XLM or a model like it, whose heads have different names.
fn like_xlm(model_type: &'static str, names: [&'static str; 4]) -> impl Iterator<Item = TextClass> {
    let tasks = [
        (TextTask::Classification, Some("sequence_summary.")),
        (TextTask::QuestionAnswering, Some("qa_outputs.")),
        (TextTask::TokenClassification, Some("classifier.")),
        (TextTask::Embedding(Pooling::Mean), None),
    ];
    names
        .into_iter()
        .zip(tasks)
        .map(move |(name, (task, head))| TextClass {
            name,
            model_type,
            head,
            read: xlm::read,
            task,
            unused: &["pred_layer."],
        })
}

/// Encoders of DPR, which have no other tasks.
const DENSE_RETRIEVERS: [TextClass; 2] = [
    TextClass {
        name: "DPRQuestionEncoder",
        model_type: "dpr",
        head: Some("question_encoder."),
        read: dpr::questions,
        task: TextTask::Embedding(Pooling::First),
        unused: &["question_encoder.bert_model.pooler."],
    },
    TextClass {
        name: "DPRContextEncoder",
        model_type: "dpr",
        head: Some("ctx_encoder."),
        read: dpr::passages,
        task: TextTask::Embedding(Pooling::First),
        unused: &["ctx_encoder.bert_model.pooler."],
    },
];

/// Gemma 3 with bidirectional attention; the class is also that of a language model.
const EMBEDDING_GEMMA: TextClass = TextClass {
    name: "Gemma3TextModel",
    model_type: "gemma3_text",
    head: None,
    read: embedding_gemma::read,
    task: TextTask::Embedding(Pooling::Mean),
    unused: &[],
};

/// Text encoders of dual encoders.
const BESIDE_IMAGES: [TextClass; 3] = [
    TextClass {
        name: "CLIPTextModelWithProjection",
        model_type: "clip_text_model",
        head: Some("text_projection."),
        read: clip::projected_text,
        task: TextTask::Embedding(Pooling::End),
        unused: &[],
    },
    TextClass {
        name: "CLIPTextModel",
        model_type: "clip_text_model",
        head: None,
        read: clip::text,
        task: TextTask::Embedding(Pooling::End),
        unused: &[],
    },
    TextClass {
        name: "SiglipTextModel",
        model_type: "siglip_text_model",
        head: None,
        read: clip::siglip_text,
        task: TextTask::Embedding(Pooling::End),
        unused: &[],
    },
];

impl TextFamily {
    fn classes(&'static self) -> impl Iterator<Item = TextClass> {
        let tasks = [
            (TextTask::Classification, Some("classifier.")),
            (TextTask::QuestionAnswering, Some("qa_outputs.")),
            // Without a class, the layer is attributed to the sequence classifier.
            (TextTask::TokenClassification, Some("classifier.")),
            (TextTask::Embedding(Pooling::Mean), None),
        ];
        let named = self.classes.into_iter().zip(tasks);
        named.filter_map(|(name, (task, head))| {
            Some(TextClass {
                name: name?,
                model_type: self.model_type,
                head,
                read: self.read,
                task,
                unused: if task == TextTask::Classification {
                    &[]
                } else {
                    self.unused
                },
            })
        })
    }
}

/// Derives the class names of a family from its prefix.
macro_rules! family {
    ($prefix:literal, $model_type:literal, $read:path, $unused:expr) => {
        TextFamily {
            classes: [
                Some(concat!($prefix, "ForSequenceClassification")),
                Some(concat!($prefix, "ForQuestionAnswering")),
                Some(concat!($prefix, "ForTokenClassification")),
                Some(concat!($prefix, "Model")),
            ],
            model_type: $model_type,
            read: $read,
            unused: $unused,
        }
    };
}

/// The families. `unused` lists poolers of base models, which old versions of transformers also saved for question
/// answering and token classification.
const TEXT_FAMILIES: &[TextFamily] = &[
    family!("Bert", "bert", bert::read, &["bert.pooler.", "pooler."]),
    family!("DistilBert", "distilbert", distilbert::read, &[]),
    family!(
        "Roberta",
        "roberta",
        roberta::read,
        &["roberta.pooler.", "pooler."]
    ),
    family!(
        "XLMRoberta",
        "xlm-roberta",
        roberta::read,
        &["roberta.pooler.", "pooler."]
    ),
    family!(
        "Camembert",
        "camembert",
        roberta::read,
        &["roberta.pooler.", "pooler."]
    ),
    family!(
        "Data2VecText",
        "data2vec-text",
        roberta::data2vec,
        &["data2vec_text.pooler.", "pooler."]
    ),
    family!(
        "RobertaPreLayerNorm",
        "roberta-prelayernorm",
        roberta::norms_first,
        &["roberta_prelayernorm.pooler.", "pooler."]
    ),
    family!(
        "XLMRobertaXL",
        "xlm-roberta-xl",
        roberta::extra_large,
        &["roberta.pooler.", "pooler."]
    ),
    family!("IBert", "ibert", ibert::read, &["ibert.pooler.", "pooler."]),
    family!("Ernie", "ernie", ernie::read, &["ernie.pooler.", "pooler."]),
    family!(
        "NomicBert",
        "nomic_bert",
        nomic_bert::read,
        &["nomic_bert.pooler.", "pooler."]
    ),
    family!("New", "new", gte::published, &["new.pooler.", "pooler."]),
    family!("JinaBert", "bert", jina::biased, &["bert.pooler.", "pooler."]),
    family!(
        "JinaEmbeddingsV3",
        "jina_embeddings_v3",
        jina::read,
        &["roberta.pooler.", "pooler."]
    ),
    family!("Ultrabert", "ultrabert", ultrabert::read, &[]),
    family!("Electra", "electra", electra::read, &[]),
    family!("RoFormer", "roformer", roformer::read, &[]),
    family!("Albert", "albert", albert::read, &["albert.pooler.", "pooler."]),
    family!("MPNet", "mpnet", mpnet::read, &["mpnet.pooler.", "pooler."]),
    family!("Deberta", "deberta", deberta::first, &["pooler."]),
    family!("DebertaV2", "deberta-v2", deberta::read, &["pooler."]),
    family!(
        "SqueezeBert",
        "squeezebert",
        squeezebert::read,
        &["transformer.pooler.", "pooler."]
    ),
    family!(
        "LayoutLM",
        "layoutlm",
        layoutlm::read,
        &["layoutlm.pooler.", "pooler."]
    ),
    family!("Luke", "luke", luke::read, &["luke.pooler.", "pooler."]),
    family!("ConvBert", "convbert", convbert::read, &[]),
    family!("FNet", "fnet", fnet::read, &["fnet.pooler.", "pooler."]),
    family!("ModernBert", "modernbert", modernbert::read, &[]),
    family!(
        "MegatronBert",
        "megatron-bert",
        megatron_bert::read,
        &["bert.pooler.", "pooler."]
    ),
    family!(
        "RemBert",
        "rembert",
        rembert::read,
        &["rembert.pooler.", "pooler."]
    ),
    family!(
        "MobileBert",
        "mobilebert",
        mobilebert::read,
        &["mobilebert.pooler.", "pooler."]
    ),
    TextFamily {
        classes: [
            Some("LongformerForSequenceClassification"),
            Some("LongformerForQuestionAnswering"),
            Some("LongformerForTokenClassification"),
            Some("LongformerModel"),
        ],
        model_type: "longformer",
        read: longformer::read,
        unused: &["longformer.pooler.", "pooler."],
    },
    TextFamily {
        classes: [
            Some("GteForSequenceClassification"),
            None,
            Some("GteForTokenClassification"),
            Some("GteModel"),
        ],
        model_type: "gte",
        read: gte::read,
        unused: &["gte.pooler.", "pooler."],
    },
    TextFamily {
        // Question answering is `BIG_BIRD_SPANS`.
        classes: [
            Some("BigBirdForSequenceClassification"),
            None,
            Some("BigBirdForTokenClassification"),
            Some("BigBirdModel"),
        ],
        model_type: "big_bird",
        read: big_bird::read,
        unused: &[],
    },
    TextFamily {
        classes: [
            Some("EsmForSequenceClassification"),
            None,
            Some("EsmForTokenClassification"),
            Some("EsmModel"),
        ],
        model_type: "esm",
        read: esm::read,
        unused: &["esm.pooler.", "pooler."],
    },
    TextFamily {
        classes: [
            Some("EuroBertForSequenceClassification"),
            None,
            Some("EuroBertForTokenClassification"),
            Some("EuroBertModel"),
        ],
        model_type: "eurobert",
        read: eurobert::read,
        unused: &[],
    },
    TextFamily {
        // The sequence classifier is an encoder-decoder.
        classes: [
            None,
            None,
            Some("T5ForTokenClassification"),
            Some("T5EncoderModel"),
        ],
        model_type: "t5",
        read: t5_encoder::read,
        unused: &[],
    },
    TextFamily {
        classes: [
            None,
            None,
            Some("MT5ForTokenClassification"),
            Some("MT5EncoderModel"),
        ],
        model_type: "mt5",
        read: t5_encoder::read,
        unused: &[],
    },
    TextFamily {
        classes: [
            None,
            None,
            Some("UMT5ForTokenClassification"),
            Some("UMT5EncoderModel"),
        ],
        model_type: "umt5",
        read: t5_encoder::umt5,
        unused: &[],
    },
];
