<?php
final class App
{
    public function run(Request $request): Response
    {
        $router = new Router();
        $router->add('GET', '/', Pages\Home::class);
        $router->add('GET', '/about', Pages\About::class);
        $router->add('GET', '/form', Pages\Form::class);
        $router->add('POST', '/form', Pages\Received::class);
        $router->add('GET', '/slow', Pages\Slow::class);
        $page = $router->find($request) ?? Pages\Missing::class;
        return (new $page())->answer($request);
    }
}
