//! The options of a model, in Ollama's names.

use crate::{
    extension::Extension,
    failure::Failure,
    field_names::TextApi,
    fields::fields,
    format::{self, Format},
    sampling::Sampling,
    values::Texts,
};

fields! {
    /// The key `options` of a request.
    pub(crate) struct Options {
        honoured num_predict: i64 = "most tokens of an answer; of a masked diffusion model, the length of its canvas. Below 0: absent",
        honoured seed: i64 = "same seed, same text",
        honoured stop: Texts = "autoregressive models: a text or a list of at most 16",
        honoured temperature: f64 = "0: the most probable token each time; where the policy has temperatures of its own (`renoise`), it changes nothing, as a warning says",
        honoured top_k: u32 = "autoregressive models",
        honoured top_p: f64 = "autoregressive models",
        honoured min_p: f64 = "autoregressive models",
        honoured repeat_penalty: f64 = "autoregressive models",
        accepted "num_ctx" = "a model has the context that it was trained with; what doesn't fit is refused",
        accepted "num_batch" = "the plan decides what memory is for",
        accepted "num_gpu" = "the plan decides what memory is for",
        accepted "main_gpu" = "the daemon has its device",
        accepted "num_thread" = "the daemon has its threads",
        accepted "numa" = "the daemon has its threads",
        accepted "low_vram" = "the plan decides what memory is for",
        accepted "f16_kv" = "the daemon's `kv_cache_format` decides",
        accepted "use_mmap" = "files are read, not mapped",
        accepted "use_mlock" = "the plan decides what memory is for",
        refused "num_keep" unless Number(0.0), "no text is cut: what doesn't fit is refused",
        refused "repeat_last_n" unless Number(-1.0), "`repeat_penalty` looks at the whole text",
        refused "presence_penalty" unless Number(0.0), "there is `repeat_penalty`",
        refused "frequency_penalty" unless Number(0.0), "there is `repeat_penalty`",
        refused "penalize_newline" unless Null, "`repeat_penalty` is for all tokens alike",
        refused "tfs_z" unless Number(1.0), "there are `top_k`, `top_p` and `min_p`",
        refused "typical_p" unless Number(1.0), "there are `top_k`, `top_p` and `min_p`",
        refused "mirostat" unless Number(0.0), "there are `top_k`, `top_p` and `min_p`",
        refused "mirostat_tau" unless Null, "there is no `mirostat`",
        refused "mirostat_eta" unless Null, "there is no `mirostat`",
        refused "logits_all" unless False, "there are `logprobs` and `top_logprobs`",
        refused "vocab_only" unless False, "models are loaded whole",
        refused "embedding_only" unless False, "`/api/embed` makes vectors",
    }
}

impl Options {
    /// The options as all requests for text have them.
    ///
    /// # Errors
    /// When there are more tokens than can be counted, several forms, or pictures asked for.
    pub(super) fn sampling(
        self,
        api: TextApi,
        model: Option<String>,
        sluice: Option<Extension>,
        top_logprobs: Option<u32>,
        format: Option<Format>,
    ) -> Result<Sampling, Failure> {
        if sluice.as_ref().is_some_and(Extension::shows_canvas) {
            let problem =
                "lines here have no place for pictures; streams of `/v1/chat/completions` have";
            return Err(Failure::field("sluice.canvas", problem));
        }
        let most = self.num_predict.filter(|most| *most >= 0);
        let too_many = |_| Failure::field("options.num_predict", "is more than any model writes");
        Ok(Sampling {
            api,
            model,
            max_tokens: most.map(u32::try_from).transpose().map_err(too_many)?,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            seed: self.seed,
            stop: self.stop,
            top_logprobs,
            grammar: format::grammar(format.and_then(Format::into_grammar), sluice.as_ref())?,
            n: None,
            sluice,
        })
    }
}
