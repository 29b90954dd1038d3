//! Grammars of requests, between the engine's thread, which must not wait for them, and the tokenizer's process, where they are
//! compiled and followed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use sluice_engine::grammar::{GrammarSource, TextGrammar};
use sluice_proto::model;
use sluice_tokenizer::{
    Patience, Tokenizer, TokenizerError,
    grammar::{AllowedTokens, Grammar, GrammarKind, HAS_GRAMMARS},
    limits::GRAMMAR_WAIT_MAX,
};

use crate::failure::Failure;

/// A grammar that was compiled once for a model, so that there is nothing wrong with it.
pub(crate) struct CheckedGrammar {
    tokenizer: Arc<Tokenizer>,
    grammar: Grammar,
}

impl CheckedGrammar {
    /// Compiles a grammar. What comes of it is not kept: a request may wait long for its turn, and there may be many.
    ///
    /// # Errors
    /// When there is something wrong with the grammar, or this program was built without grammars.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        grammar: model::Grammar,
        patience: &Patience,
    ) -> Result<Self, Failure> {
        if !HAS_GRAMMARS {
            return Err(Failure::WithoutGrammars);
        }
        let (kind, text) = match grammar {
            model::Grammar::JsonSchema(text) => (GrammarKind::JsonSchema, text),
            model::Grammar::Regex(text) => (GrammarKind::Regex, text),
            model::Grammar::Lark(text) => (GrammarKind::Lark, text),
        };
        let grammar = Grammar { kind, text };
        tokenizer.compile(&grammar, patience)?;
        Ok(Self { tokenizer, grammar })
    }
}

impl GrammarSource for CheckedGrammar {
    fn begin(&self) -> Box<dyn TextGrammar> {
        let (tokens, accepted) = mpsc::channel();
        let (answers, allowed) = mpsc::channel();
        let is_gone = Arc::new(AtomicBool::new(false));
        let follow = Follow {
            tokenizer: Arc::clone(&self.tokenizer),
            grammar: self.grammar.clone(),
            is_gone: Arc::clone(&is_gone),
        };
        let failed = answers.clone();
        let started = thread::Builder::new()
            .name("grammar".into())
            .spawn(move || follow.run(&accepted, &answers));
        if let Err(error) = started {
            let cause = format!("a thread for a grammar: {error}");
            // The other end is below.
            let _ = failed.send(Err(TokenizerError::Process { cause }));
        }
        Box::new(FollowedText {
            tokens,
            allowed,
            is_gone,
            latest: None,
        })
    }
}

/// What the thread of a text's grammar needs.
struct Follow {
    tokenizer: Arc<Tokenizer>,
    grammar: Grammar,
    is_gone: Arc<AtomicBool>,
}

type Answer = Result<AllowedTokens, TokenizerError>;

impl Follow {
    /// Compiles the grammar, and answers each token with those that may come next, until one side has nothing more to say.
    fn run(self, tokens: &Receiver<u32>, answers: &Sender<Answer>) {
        let patience = || Patience::new(GRAMMAR_WAIT_MAX, Arc::clone(&self.is_gone));
        let (mut session, allowed) = match self.tokenizer.compile(&self.grammar, &patience()) {
            Ok(compiled) => compiled,
            // Nobody may be there to hear it.
            Err(error) => return drop(answers.send(Err(error))),
        };
        let mut answer = Ok(allowed);
        loop {
            let has_failed = answer.is_err();
            if answers.send(answer).is_err() || has_failed {
                return;
            }
            let Ok(token) = tokens.recv() else {
                return;
            };
            answer = session.accept(token, &patience());
        }
    }
}

/// A text whose grammar another thread follows. At most one answer is on its way.
struct FollowedText {
    tokens: Sender<u32>,
    allowed: Receiver<Answer>,
    is_gone: Arc<AtomicBool>,
    /// The answer to the last token, once it is there.
    latest: Option<Answer>,
}

impl TextGrammar for FollowedText {
    fn allowed(&mut self, wait: Duration) -> Result<Option<&AllowedTokens>, TokenizerError> {
        if self.latest.is_none() {
            self.latest = match self.allowed.recv_timeout(wait) {
                Ok(answer) => Some(answer),
                Err(RecvTimeoutError::Timeout) => None,
                // It panicked, or had failed and was asked again.
                Err(RecvTimeoutError::Disconnected) => Some(Err(TokenizerError::Process {
                    cause: "the thread of the grammar has ended".to_owned(),
                })),
            };
        }
        match &self.latest {
            Some(Ok(allowed)) => Ok(Some(allowed)),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        }
    }

    fn accept(&mut self, token: u32) {
        self.latest = None;
        // Where the thread has ended, the next answer tells.
        let _ = self.tokens.send(token);
    }
}

impl Drop for FollowedText {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}
