//! Writes `oip/src/generated.rs` from `oip/proto/inference.proto`. Needs no protoc: protox parses the file.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = home.join("proto/inference.proto");
    let descriptors = protox::compile([&proto], [home.join("proto")])?;
    let out = env::temp_dir().join(format!("kaskade-oip-{}", std::process::id()));
    fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .out_dir(&out)
        .bytes(".")
        .codec_path("crate::codec::CappedCodec")
        .build_transport(false)
        .compile_fds(descriptors)?;
    let code = fs::read_to_string(out.join("inference.rs"))?;
    fs::remove_dir_all(&out)?;
    let mut digest = String::new();
    for byte in Sha256::digest(fs::read(&proto)?) {
        write!(digest, "{byte:02x}")?;
    }
    let head = format!("// Made of proto/inference.proto by codegen.sh. SHA-256 of that file: {digest}\n");
    fs::write(home.join("src/generated.rs"), head + &code)?;
    Ok(())
}
