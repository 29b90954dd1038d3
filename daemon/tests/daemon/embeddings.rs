//! Vectors of texts over the wire. That they are the reference's, the engine's tests show.

use std::fs;

use serde_json::Value;
use sluice_proto::v1::{self, embedding_service_client::EmbeddingServiceClient};
use tonic::{Code, Status};

use crate::support::{Daemon, checkpoints};

pub(crate) async fn embed(
    daemon: &Daemon,
    request: v1::EmbedRequest,
) -> Result<v1::EmbedResponse, Status> {
    let mut client = EmbeddingServiceClient::new(daemon.channel().await);
    Ok(client.embed(request).await?.into_inner())
}

pub(crate) fn texts(texts: &[&str]) -> v1::EmbedRequest {
    v1::EmbedRequest {
        texts: texts.iter().map(|&text| text.to_owned()).collect(),
        ..Default::default()
    }
}

#[tokio::test]
async fn texts_get_the_vectors_of_their_ids_and_are_cut_where_they_are_long() {
    for name in ["bert-tiny", "model2vec-tiny"] {
        let folder = checkpoints::fixture(name);
        let daemon = Daemon::with_model(&folder, &[]).await;
        let said = fs::read(folder.join("vectors.json")).unwrap();
        let said: Value = serde_json::from_slice(&said).unwrap();
        let list = |key: &str| said[key].as_array().unwrap().clone();
        let all: Vec<_> = list("texts");
        let all: Vec<&str> = all.iter().map(|text| text.as_str().unwrap()).collect();
        let ids: Vec<v1::TokenIds> = (list("ids").iter())
            .map(|ids| v1::TokenIds {
                ids: serde_json::from_value(ids.clone()).unwrap(),
            })
            .collect();
        let found = embed(&daemon, texts(&all)).await.unwrap();
        assert!(found.is_lossless && found.dimensions > 0);
        let by_ids = v1::EmbedRequest {
            tokens: ids.clone(),
            ..Default::default()
        };
        let by_ids = embed(&daemon, by_ids).await.unwrap();
        for (index, vector) in found.vectors.iter().enumerate() {
            assert_eq!(
                vector.values, by_ids.vectors[index].values,
                "{name}: {index}"
            );
            assert_eq!(vector.tokens as usize, ids[index].ids.len());
        }
        // The two texts that have more than 24 tokens.
        let cut = found.vectors.iter().filter(|vector| vector.is_truncated);
        assert!(cut.count() > 0, "{name}");
        let whole = v1::EmbedRequest {
            truncate: Some(false),
            ..texts(&all)
        };
        let status = embed(&daemon, whole).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("the model reads 24"), "{status}");
    }
}

#[tokio::test]
async fn encoders_write_nothing_and_others_embed_nothing() {
    let daemon = Daemon::with_model(&checkpoints::fixture("bert-tiny"), &[]).await;
    let request = v1::GenerateRequest {
        input: Some(v1::generate_request::Input::RawText("a".to_owned())),
        ..Default::default()
    };
    let status = daemon
        .generation()
        .await
        .generate(request)
        .await
        .unwrap_err();
    assert!(
        status.message().contains("is a sentence encoder"),
        "{status}"
    );
    for (request, part) in [
        (texts(&[]), "texts: is empty"),
        (texts(&["a"; 2049]), "exceed the limit of 2048"),
        (texts(&[&"a".repeat((1 << 20) + 1)]), "bytes of text"),
    ] {
        let status = embed(&daemon, request).await.unwrap_err();
        assert!(status.message().contains(part), "{status}");
    }
    let other = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let status = embed(&other, texts(&["a"])).await.unwrap_err();
    assert!(
        status.message().contains("only sentence encoders"),
        "{status}"
    );
}
