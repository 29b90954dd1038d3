//! What a sentence encoder's folder says beside `config.json`: how a text's vector is made of its rows.

use serde_json::{Map, Value};
use sluice_weights::TensorNaming;

use crate::{
    CONFIG_BYTES_MAX, Checkpoint, CheckpointError,
    family::{Family, ModelConfig, SentenceFiles, complete, pooling_folder},
    parse_json,
};

/// Tensors of newer static tables, which change what a token's row is.
const STATIC_EXTRAS: [&str; 2] = ["mapping", "weights"];

impl Checkpoint {
    /// Adds to a static table's configuration the sizes that only its tensor has.
    pub(crate) fn add_table_sizes(
        &self,
        config: &mut Map<String, Value>,
    ) -> Result<(), CheckpointError> {
        let is_static =
            config.get("model_type").and_then(Value::as_str) == Some(Family::Model2Vec.name());
        let Some([rows, width]) = self.tensor("embeddings").map(|entry| &entry.shape[..]) else {
            return Ok(());
        };
        if is_static {
            config.insert("vocab_size".to_owned(), (*rows).into());
            config.insert("hidden_dim".to_owned(), (*width).into());
        }
        Ok(())
    }

    /// Completes a sentence encoder's configuration by its other files, and by how its tensors are named.
    pub(crate) fn complete_encoder(&self, config: &mut ModelConfig) -> Result<(), CheckpointError> {
        if config.sentences.is_none() {
            return Ok(());
        }
        if config.family == Family::Model2Vec {
            let extra = STATIC_EXTRAS
                .iter()
                .find(|name| self.tensor(name).is_some());
            return match extra {
                Some(&key) => Err(CheckpointError::Config {
                    key: "model_type",
                    problem: format!(
                        "is model2vec with a tensor {key:?}; only tables with a row for each token are supported"
                    ),
                }),
                None => Ok(()),
            };
        }
        let mut prefixed = config.shape.clone();
        prefixed.naming = TensorNaming::PrefixedBert;
        if self.tensor(&prefixed.embedding_name()).is_some() {
            config.shape = prefixed;
        }
        let modules: Option<Vec<_>> = self.json_file("modules.json")?;
        let pooling = match modules.as_deref().and_then(pooling_folder) {
            // One folder below this one, whatever the file says.
            Some(folder)
                if folder.is_empty() || folder.contains(['/', '\\']) || folder.starts_with('.') =>
            {
                return Err(CheckpointError::Config {
                    key: "modules.json",
                    problem: "has the Pooling outside of the model's folder".to_owned(),
                });
            }
            Some(folder) => {
                let name = format!("{folder}/config.json");
                let found = self.json_file(&name)?;
                // A guess would give other vectors.
                Some(found.ok_or_else(|| CheckpointError::Config {
                    key: "modules.json",
                    problem: format!(
                        "names {name}, which is missing: it is needed from where the model is published"
                    ),
                })?)
            }
            None => None,
        };
        let files = SentenceFiles {
            modules,
            pooling,
            transformer: self.json_file("sentence_bert_config.json")?,
            whole: self.json_file("config_sentence_transformers.json")?,
        };
        complete(config, &files)
    }

    fn json_file<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>, CheckpointError> {
        let bytes = self.small_file(name, CONFIG_BYTES_MAX)?;
        bytes
            .map(|bytes| parse_json(&self.source, name, &bytes))
            .transpose()
    }
}
