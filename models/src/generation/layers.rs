//! The layers of a model, on the device and in host memory.
//!
//! | module | holds |
//! |---|---|
//! | `layer`, `host_layer` | one layer, on the device and in host memory |
//! | `layer_context` | inputs that all layers of a pass share |
//! | `self_attention`, `cross_attention` | attention to earlier tokens, and to the output of an encoder |
//! | `recurrent` | recurrences and their states |
//! | `experts` | experts and their computation |
//! | `streams` | AltUp streams |
//! | `encoder` | the encoder of an encoder-decoder |
//! | `per_layer_embeddings` | per-layer embeddings |
//! | `output_head` | the projection to logits, which may store the embedding |
//! | `linear_shape` | the shape of a linear layer in host memory |

pub(crate) mod cross_attention;
pub(crate) mod encoder;
pub(crate) mod experts;
pub(crate) mod host_layer;
pub(crate) mod layer;
pub(crate) mod layer_context;
pub(crate) mod linear_shape;
pub(crate) mod output_head;
pub(crate) mod per_layer_embeddings;
pub(crate) mod recurrent;
pub(crate) mod self_attention;
pub(crate) mod streams;
