//! The schemas that are committed for people and editors must be those of the types.

/// Fails if `docs/<file>` is not this schema; with `UPDATE_SCHEMAS=1` it is written instead.
pub(crate) fn committed(file: &str, schema: &schemars::Schema) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../../docs")
        .join(file);
    let current = serde_json::to_string_pretty(schema).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &current).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == current,
        "docs/{file} is not the schema of the types; UPDATE_SCHEMAS=1 cargo test -p kaskade-policy-unit-tests writes it"
    );
}
