//! Which request goes where, and what all answers have.

use std::sync::Arc;

use http_body::Body as HttpBody;
use hyper::{
    Method, Request, StatusCode,
    header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
    http::Extensions,
};
use percent_encoding::percent_decode_str;
use sluice_shared::origin::Origin;
use tonic::codegen::Bytes;

use crate::{
    body,
    door::Door,
    failure::Failure,
    health, metrics, ollama, openai, origins,
    services::{GrpcServices, Services},
    streaming::{self, Answer},
};

/// What a path stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// What is read, by GET.
    Page(Page),
    /// What is asked for, by POST.
    Question(Question),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Page {
    Root,
    Health,
    Live,
    Metrics,
    Models,
    Model(String),
    OllamaTags,
    OllamaPs,
    OllamaVersion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Chat,
    Completions,
    Embeddings,
    OllamaChat,
    OllamaEmbed,
    OllamaGenerate,
    OllamaShow,
}

impl Place {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/" => Self::Page(Page::Root),
            "/health" => Self::Page(Page::Health),
            "/health/live" => Self::Page(Page::Live),
            "/metrics" => Self::Page(Page::Metrics),
            "/v1/chat/completions" => Self::Question(Question::Chat),
            "/v1/completions" => Self::Question(Question::Completions),
            "/v1/embeddings" => Self::Question(Question::Embeddings),
            "/v1/models" => Self::Page(Page::Models),
            "/api/chat" => Self::Question(Question::OllamaChat),
            "/api/embed" => Self::Question(Question::OllamaEmbed),
            "/api/generate" => Self::Question(Question::OllamaGenerate),
            "/api/tags" => Self::Page(Page::OllamaTags),
            "/api/ps" => Self::Page(Page::OllamaPs),
            "/api/show" => Self::Question(Question::OllamaShow),
            "/api/version" => Self::Page(Page::OllamaVersion),
            path => {
                // Names of models have slashes, which some clients encode.
                let name = percent_decode_str(path.strip_prefix("/v1/models/")?);
                Self::Page(Page::Model(name.decode_utf8().ok()?.into_owned()))
            }
        })
    }

    fn method(&self) -> Method {
        match self {
            Self::Page(_) => Method::GET,
            Self::Question(_) => Method::POST,
        }
    }
}

impl Question {
    /// The call whose message the request's body becomes.
    fn call(self) -> &'static str {
        match self {
            Self::Chat | Self::Completions | Self::OllamaChat | Self::OllamaGenerate => {
                "/sluice.v1.GenerationService/Generate"
            }
            Self::Embeddings | Self::OllamaEmbed => "/sluice.v1.EmbeddingService/Embed",
            Self::OllamaShow => "/sluice.v1.ModelService/ListModels",
        }
    }
}

/// How errors are written.
#[derive(Debug, Clone, Copy)]
enum Dialect {
    OpenAi,
    Ollama,
}

impl Dialect {
    fn of(path: &str) -> Self {
        match path.starts_with("/api/") {
            true => Self::Ollama,
            false => Self::OpenAi,
        }
    }

    /// The answer to a request that has failed.
    fn failed(self, failure: Failure) -> Answer {
        let (status, retry_after_s) = (failure.status, failure.retry_after_s);
        let allowed = failure.allowed.clone();
        let mut answer = match self {
            Self::OpenAi => openai::error::answer(failure),
            Self::Ollama => ollama::error::answer(failure),
        };
        let headers = answer.headers_mut();
        if let Some(seconds) = retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(method) = allowed
            && let Ok(method) = HeaderValue::from_str(method.as_str())
        {
            headers.insert(ALLOW, method);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

/// What the administrator decides.
#[derive(Debug, Clone, Default)]
pub struct HttpOptions {
    /// Web pages that may call.
    pub origins: Vec<Origin>,
    /// Whether the daemon knows tokens. Where it knows none, the key that clients of OpenAI's API insist on means nothing, and
    /// is not handed on.
    pub has_tokens: bool,
}

/// All that answers requests. Clones share what they count.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    services: GrpcServices,
    options: Arc<HttpOptions>,
    door: Arc<dyn Door>,
}

impl Routes {
    pub(crate) fn new(services: GrpcServices, door: Arc<dyn Door>, options: HttpOptions) -> Self {
        Self {
            services,
            options: Arc::new(options),
            door,
        }
    }

    /// Answers a request. Its own words for what is wrong are those of the API that was called.
    pub(crate) async fn answer<B>(&self, connection: &Extensions, request: Request<B>) -> Answer
    where
        B: HttpBody<Data = Bytes> + Unpin,
    {
        let dialect = Dialect::of(request.uri().path());
        let origin = match origins::check(&self.options.origins, request.headers()) {
            Ok(origin) => origin,
            Err(refused) => return dialect.failed(refused),
        };
        let mut answer = match request.method() {
            &Method::OPTIONS if origin.is_some() => {
                let mut answer = Answer::default();
                *answer.status_mut() = StatusCode::NO_CONTENT;
                origins::allow_requests(answer.headers_mut());
                answer
            }
            _ => (self.handle(connection, request).await)
                .unwrap_or_else(|failure| dialect.failed(failure)),
        };
        if let Some(origin) = origin {
            origins::allow(origin, answer.headers_mut());
        }
        answer
    }

    async fn handle<B>(
        &self,
        connection: &Extensions,
        request: Request<B>,
    ) -> Result<Answer, Failure>
    where
        B: HttpBody<Data = Bytes> + Unpin,
    {
        let Some(place) = Place::of(request.uri().path()) else {
            let message = "there is nothing at this path; docs/http.md lists what there is";
            return Err(Failure::new(StatusCode::NOT_FOUND, "unknown_path", message));
        };
        let method = place.method();
        // The HTTP library leaves its body out.
        let is_head = request.method() == Method::HEAD && method == Method::GET;
        if *request.method() != method && !is_head {
            let message = format!("this path takes {method}");
            let status = StatusCode::METHOD_NOT_ALLOWED;
            return Err(Failure {
                allowed: Some(method),
                ..Failure::new(status, "method_not_allowed", message)
            });
        }
        let has_tokens = self.options.has_tokens;
        let services = Services::new(&self.services, connection, request.headers(), has_tokens);
        match place {
            Place::Page(page) => self.page(page, &services).await,
            Place::Question(question) => {
                // Before any of its body is read.
                let admission = self.door.admit(&services.head(question.call()))?;
                let body = body::read(request.into_body(), admission).await?;
                match question {
                    Question::Chat => openai::chat::answer(&services, body).await,
                    Question::Completions => openai::completions::answer(&services, body).await,
                    Question::Embeddings => openai::embeddings::answer(&services, body).await,
                    Question::OllamaEmbed => ollama::embed::answer(&services, body).await,
                    Question::OllamaChat => ollama::chat::answer(&services, body).await,
                    Question::OllamaGenerate => ollama::generate::answer(&services, body).await,
                    Question::OllamaShow => ollama::models::show(&services, body).await,
                }
            }
        }
    }

    async fn page(&self, page: Page, services: &Services) -> Result<Answer, Failure> {
        match page {
            // Ollama's clients look here whether anybody is there.
            Page::Root => Ok(streaming::text("text/plain", "sluiced is running\n")),
            Page::Health => Ok(health::ready(self.door.health())),
            Page::Live => Ok(health::live(self.door.health())),
            Page::Metrics => metrics::answer(services).await,
            Page::Models => openai::models::list(services).await,
            Page::Model(name) => openai::models::find(services, &name).await,
            Page::OllamaTags => ollama::models::tags(services).await,
            Page::OllamaPs => ollama::models::ps(services).await,
            Page::OllamaVersion => ollama::models::version(services).await,
        }
    }
}
