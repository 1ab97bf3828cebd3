//! Checkpoints as Hugging Face directories.

use std::error::Error;
use std::path::Path;

use burn::module::Module;
use burn::store::{
    BurnToPyTorchAdapter, HalfPrecisionAdapter, ModuleAdapter, ModuleSnapshot, SafetensorsStore,
};
use serde_json::Value;

/// Writes a network and what its `config.json` shall say.
pub(crate) fn write<M: Module>(directory: &Path, config: &Value, network: &M) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(
        directory.join("config.json"),
        serde_json::to_string_pretty(config)? + "\n",
    )?;
    // Half precision: it halves what the repository carries, and no prediction hangs on the bits it drops.
    let mut store = SafetensorsStore::from_file(directory.join("model.safetensors"))
        .overwrite(true)
        .with_to_adapter(BurnToPyTorchAdapter.chain(HalfPrecisionAdapter::new()));
    network.save_into(&mut store)?;
    Ok(())
}
