//! What all requests for text have in common: the model, how tokens are chosen, and how many answers there are.

use sluice_proto::v1::{self, generate_request::Input};

use crate::{
    extension::Extension, failure::Failure, field_names::TextApi, format, limits::CHOICES_MAX,
    models::untagged, terms::CallTerms, values::Texts,
};

/// What a request says beside its prompt.
#[derive(Debug)]
pub(crate) struct Sampling {
    pub(crate) api: TextApi,
    pub(crate) model: Option<String>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<Texts>,
    /// Tokens whose log-probabilities come beside each token's; `None`: none are told.
    pub(crate) top_logprobs: Option<u32>,
    /// What the answer matches.
    pub(crate) grammar: Option<v1::Grammar>,
    pub(crate) n: Option<u32>,
    pub(crate) sluice: Option<Extension>,
}

impl Sampling {
    /// Answers to each prompt.
    ///
    /// # Errors
    /// When there are none, or too many for so many prompts.
    pub(crate) fn choices(&self, prompts: usize) -> Result<u32, Failure> {
        let choices = self.n.unwrap_or(1);
        if choices == 0 {
            return Err(Failure::field("n", "must be at least 1, not 0"));
        }
        match choices as usize > CHOICES_MAX / prompts.max(1) {
            true => {
                let problem = format!(
                    "{choices} answers to {prompts} prompts are more than {CHOICES_MAX} answers"
                );
                Err(Failure::field("n", problem))
            }
            false => Ok(choices),
        }
    }

    /// Whether pictures of the canvas are asked for.
    pub(crate) fn shows_canvas(&self) -> bool {
        (self.sluice.as_ref()).is_some_and(Extension::shows_canvas)
    }

    /// The name of the model as the daemon has it; empty for the present one.
    fn model_name(&self) -> String {
        untagged(self.model.as_deref().unwrap_or_default()).to_owned()
    }

    /// What goes beside the messages.
    pub(crate) fn terms(&self) -> CallTerms {
        CallTerms::new(self.api, self.sluice.as_ref())
    }

    /// A request for each answer to this input: they differ in their seeds.
    ///
    /// # Errors
    /// When options of both kinds of models are given.
    pub(crate) fn requests(
        &self,
        input: Input,
        choices: u32,
    ) -> Result<impl Iterator<Item = v1::GenerateRequest>, Failure> {
        let request = self.request(input)?;
        Ok((0..choices).map(move |index| {
            let mut request = request.clone();
            let seed = &mut request.sampling_mut().seed;
            *seed = seed.map(|seed| seed.wrapping_add(index.into()));
            request
        }))
    }

    /// The request for one answer to this input.
    ///
    /// # Errors
    /// When options of both kinds of models are given.
    pub(crate) fn request(&self, input: Input) -> Result<v1::GenerateRequest, Failure> {
        // An edit takes its length from its text, and says itself how much is put in.
        let length = match &input {
            Input::Edit(_) => None,
            _ => self.max_tokens,
        };
        let mut request = v1::GenerateRequest {
            model: self.model_name(),
            length,
            input: Some(input),
            ..Default::default()
        };
        if let Some(sluice) = &self.sluice {
            sluice.apply(&mut request);
        }
        let options = v1::AutoregressiveOptions {
            grammar: self.grammar.clone(),
            stop: (self.stop.as_ref()).map_or_else(Vec::new, |Texts(stop)| stop.clone()),
            top_logprobs: self.top_logprobs,
        };
        if options != v1::AutoregressiveOptions::default() {
            if let Some(other) = self.sluice.as_ref().and_then(Extension::of_diffusion) {
                let asked = match &options.grammar {
                    _ if !options.stop.is_empty() => "autoregressive.stop",
                    Some(grammar) => format::name(grammar),
                    None => "autoregressive.top_logprobs",
                };
                let problem = format!(
                    "is for autoregressive models, and `{other}` for masked diffusion models; leave one of them out"
                );
                let failure = Failure::field(asked, problem);
                return Err(failure.renamed(|field| self.api.name(field)));
            }
            *request.autoregressive_mut() = options;
        }
        let sampling = request.sampling_mut();
        sampling.temperature = self.temperature;
        sampling.top_p = self.top_p;
        sampling.top_k = self.top_k;
        sampling.min_p = self.min_p;
        sampling.repetition_penalty = self.repetition_penalty;
        sampling.seed = self.seed.map(i64::cast_unsigned);
        // Clients of these APIs send one to any model.
        sampling.skip_unused_temperature = true;
        Ok(request)
    }
}
