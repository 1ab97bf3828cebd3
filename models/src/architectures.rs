//! Classifiers, detectors and question answering models, one file per architecture, and the registry of all
//! architectures.

mod albert;
mod architecture;
mod attention_pooling;
mod bert;
mod big_bird;
mod block_attention;
mod bottleneck;
mod clip;
pub mod cnn;
mod convbert;
mod deberta;
mod distilbert;
mod dpr;
mod dual;
mod dynamic_convolution;
mod electra;
mod embedding_gemma;
mod encoder;
mod ernie;
mod esm;
mod eurobert;
mod fnet;
mod fourier;
mod global_attention;
pub mod grid_detector;
mod grid_rotary;
mod gte;
mod ibert;
mod image;
mod image_families;
mod jina;
mod last_token;
mod layers;
mod longformer;
mod luke;
mod megatron_bert;
pub mod mlp;
mod mobilebert;
mod modernbert;
mod mpnet;
mod nomic_bert;
pub(crate) mod onnx;
mod patches;
mod position_bias;
pub(crate) mod registry;
mod relative_attention;
mod rembert;
mod residual;
mod roberta;
mod roformer;
pub(crate) mod second_text;
mod squeezebert;
mod static_embedding;
mod t5_encoder;
pub(crate) mod text;
mod text_config;
mod text_decoder;
mod text_encoder;
mod text_families;
mod text_head;
mod text_input;
mod text_passthrough;
mod token_convolution;
mod ultrabert;
mod vector_layer;
mod vision;
mod vit;
mod vit_config;
mod vit_head;
mod vit_positions;
mod weight_layout;
mod xlnet;

#[cfg(test)]
mod adapter_tests;
#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod partition_tests;
#[cfg(test)]
mod sentence_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod text_tests;
#[cfg(test)]
mod usage_tests;
